"""What can be set, where it came from, and what is chosen when nobody says."""

from finqa_cli.settings.backend_choice import Choices, Facts, choose, facts
from finqa_cli.settings.load import Loaded, load_settings
from finqa_cli.settings.public import from_public_dict, to_public_dict, to_stated_dict
from finqa_cli.settings.schema import AUTO, EMBEDDED, ENVIRONMENT, PLACED, Choice, Settings, TrainSettings, is_embedded
from finqa_cli.settings.sources import dotenv_variables
from finqa_cli.settings.tiers import RESOLVED, Shipped, is_shipped, list_shipped

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
