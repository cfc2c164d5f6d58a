"""Compiled data sets: the store on this machine and the compiler."""
