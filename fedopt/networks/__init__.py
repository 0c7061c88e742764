"""Networks as functions of one flat vector; your own nn.Module."""
