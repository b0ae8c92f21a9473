"""What reading a model costs, beside a plain forward pass: time in pairs, memory in processes of their own."""
