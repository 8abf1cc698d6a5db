"""The named algorithms: three parts each, and the defaults that they change."""
