"""The block graph in factored form: built, fused, asked, measured."""
