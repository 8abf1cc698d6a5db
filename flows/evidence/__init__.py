"""What can be done with stored rounds besides going on with them."""
