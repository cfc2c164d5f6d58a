"""Settings: their declarations, the layers they are read from, and the choice of backends that are `auto`."""

from finqa_cli.settings.backend_choice import Choices, Facts, choose, facts
from finqa_cli.settings.layers import dotenv_variables
from finqa_cli.settings.load import Loaded, from_public_dict, load_settings, to_public_dict, to_stated_dict
from finqa_cli.settings.schema import AUTO, EMBEDDED, ENVIRONMENT, PLACED, Choice, Settings, TrainSettings, is_embedded
from finqa_cli.settings.settings_files import RESOLVED, Shipped, is_shipped, list_shipped

__all__ = [
    "AUTO",
    "EMBEDDED",
    "ENVIRONMENT",
    "PLACED",
    "RESOLVED",
    "Choice",
    "Choices",
    "Facts",
    "Loaded",
    "Settings",
    "Shipped",
    "TrainSettings",
    "choose",
    "dotenv_variables",
    "facts",
    "from_public_dict",
    "is_embedded",
    "is_shipped",
    "list_shipped",
    "load_settings",
    "to_public_dict",
    "to_stated_dict",
]
