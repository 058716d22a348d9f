"""The catalogue of domains: built-in ones by module, other people's by entry point.

A package adds domains with entry points of the group `practicum.domains`, each naming a `Domain`
class. Modules are imported when their domain is first asked for.
"""

from practicum.domains.catalogue import all_domains, domain_names, get_domain
from practicum.domains.domain import Domain, Script

__all__ = ["Domain", "Script", "all_domains", "domain_names", "get_domain"]
