"""Names of which one language alone has each, by Babel's tables."""

import reading

LANGUAGES = "cs da de en es fi fr hu it nl pl pt sv tr".split()


def names_by_language(limit):
    """(name, language): of territories, languages, scripts, currencies and cities, where one language alone has it."""
    from babel import Locale

    found = {}
    for language in LANGUAGES:
        locale = Locale(language)
        tables = (locale.territories, locale.languages, locale.scripts, locale.currencies)
        names = {name for table in tables for name in table.values()}
        names |= {zone["city"] for zone in locale.time_zones.values() if "city" in zone}
        for name in names:
            found.setdefault(name, []).append(language)
    rows = [(name, languages[0]) for name, languages in sorted(found.items()) if len(languages) == 1]
    print(f"{len(found) - len(rows):,} of {len(found):,} names are those of several languages: left out")
    return sorted(rows, key=lambda row: reading.same(row[0]))[:limit]
