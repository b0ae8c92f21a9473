"""Models that can be measured: the tiny GPT with its training, and where pretrained weights come from."""
