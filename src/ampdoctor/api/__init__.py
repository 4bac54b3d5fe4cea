"""What ``ampdoctor`` offers to Python code: ``scan`` and the ``Report`` that it returns."""
