"""NumPy's own functions on tensors: ``np.exp(t)``, ``np.sum(t, axis=0)``, ``np.gradient(t)``.

NumPy calls ``protocols``. The other files contain functions with NumPy's names and arguments that the operators lack,
or have in another form. All are combinations of operators, so nothing is gathered.
"""
