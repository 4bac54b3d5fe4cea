"""The files ampdoctor owns: saved traces and baselines, each written whole and refused with a reason."""
