# Roundweave for a work pool of Prefect; see docs/how-to/schedule.md. It has not been tried.
FROM python:3.11-slim

# The address of torch's package index for processors; without it gigabytes of CUDA come along.
ARG TORCH_INDEX

WORKDIR /roundweave
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY roundweave roundweave
COPY flows flows
COPY tasks tasks
COPY storage storage
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--extra-index-url $TORCH_INDEX} .

WORKDIR /work
