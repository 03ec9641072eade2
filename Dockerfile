# The program in a small image: `docker build -t grove .`, then `docker run --rm -v "$PWD/runs:/work/runs" grove train fruit`.
#
# For NVIDIA GPUs: `docker build --build-arg FEATURES=cuda --build-arg BASE=nvidia/cuda:12.8.1-devel-ubuntu24.04 -t grove .`,
# then `docker run --rm --gpus all grove train fruit --device cuda`. Kernels are compiled at run time, hence `devel`.
ARG BASE=debian:12-slim

FROM rust:1.95-bookworm AS build
ARG FEATURES=
# Debian 12's Node is older than 20.
COPY --from=node:20-bookworm-slim /usr/local/bin /usr/local/bin
COPY --from=node:20-bookworm-slim /usr/local/lib/node_modules /usr/local/lib/node_modules
RUN rustup target add wasm32-unknown-unknown
WORKDIR /src
COPY . .
RUN web/build.sh && cargo build --profile dist --locked --features "$FEATURES" && cp target/dist/grove /grove

FROM ${BASE}
COPY --from=build /grove /usr/local/bin/grove
WORKDIR /work
EXPOSE 8642
ENTRYPOINT ["grove"]
