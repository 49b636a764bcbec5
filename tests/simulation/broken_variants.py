"""All worlds that are broken on purpose."""

from typing import Final

from tests.simulation.rights_variants import RIGHTS
from tests.simulation.sealer_variants import SEALERS
from tests.simulation.variants import GENERAL, Variant

BROKEN: Final[tuple[Variant, ...]] = (*GENERAL, *SEALERS, *RIGHTS)
