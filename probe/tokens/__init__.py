"""How one tokenizer sees a text, and where labelled words lie among its tokens."""
