"""What the user asked for: YAML, ``--set`` and command-line options become one checked ``Config``.

``schema`` is the contract, ``document`` reads YAML and remembers lines, ``problems`` words what is wrong.
"""

from ampdoctor.config.read import config_from_options, config_from_values, load_config, parse_config
from ampdoctor.config.schema import Config

__all__ = ["Config", "config_from_options", "config_from_values", "load_config", "parse_config"]
