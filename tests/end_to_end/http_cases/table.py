"""All cases of the table."""

from tests.end_to_end.http_cases import (
    against_the_model,
    answered,
    generate,
    refused,
    repository,
    routes,
    settings,
    trace,
)

CASES = [
    *routes.CASES,
    *answered.CASES,
    *refused.CASES,
    *against_the_model.CASES,
    *generate.CASES,
    *settings.CASES,
    *repository.CASES,
    *trace.CASES,
]
