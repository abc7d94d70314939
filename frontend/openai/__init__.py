"""OpenAI's HTTP API over the text models of the repository: the paths under `/v1`. Front-end processes."""
