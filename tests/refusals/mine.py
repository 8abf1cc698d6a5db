"""A user's functions that no run can be made of; rows of the tables name them."""
