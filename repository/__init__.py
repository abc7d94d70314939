"""Model repositories: which models and versions are on disk or in a cloud, and what a load has to do."""
