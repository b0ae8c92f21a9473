"""What things cost: reading a model beside a plain pass, the tiny GPT beside GPT-2, decoding with and without a cache.

Times are taken in pairs, memory in processes of its own.
"""
