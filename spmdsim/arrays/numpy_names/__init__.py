"""What NumPy's own functions do with tensors: ``np.exp(t)``, ``np.sum(t, axis=0)``, ``np.gradient(t)``.

``protocols`` is what NumPy asks; the other files hold, under NumPy's names and with NumPy's arguments, what the operators
have not, or have in another form. All of it is made of operators: nothing is gathered for NumPy's sake.
"""
