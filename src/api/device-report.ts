import { t } from "elysia";
import { bytes, count, nullable } from "./fields.ts";

const found = t.Union([t.Literal("usable"), t.Literal("absent"), t.Literal("broken")], {
  description: "`absent`: nothing of the kind is here; `broken`: it is here and cannot be used",
});
const numaNode = nullable(t.Number({ description: "Memory node it is near; null: unknown" }));
const text = t.String({ description: "What was found, in one line" });
const fix = nullable(t.String({ description: "What to do about it; null where nothing is" }));

const gpu = t.Object({
  name: t.String(),
  pci: t.String({ description: "Address on the bus, as `0000:3b:00.0`" }),
  uuid: t.String({ description: "As nvidia-smi has it, without its `GPU-`" }),
  memory_bytes: bytes("Its memory"),
  numa_node: numaNode,
  dma_buf: t.Boolean({ description: "Whether its memory can be handed to other devices" }),
  lost: nullable(t.String({ description: "With what it was lost; null while it works" })),
  pageable_copies: count("Copies that held up their thread, since the start"),
});

/** `gpu` of the status. */
export const gpuStatus = t.Union(
  [
    t.Object({
      found,
      text,
      fix,
      driver: nullable(t.String({ description: "CUDA version it is for; null: unknown" })),
      batches: t.Boolean({ description: "Whether many pieces are copied by one call" }),
      registered_bytes: bytes("RAM that is registered with the driver"),
      devices: t.Array(gpu),
    }),
    t.Null(),
  ],
  { description: 'GPUs; null with `gpu.enabled = "off"`' },
);

const port = t.Object({
  name: t.String({ description: "Device and port, as `mlx5_0/1`" }),
  state: t.Union([
    t.Literal("active"),
    t.Literal("down"),
    t.Literal("no_address"),
    t.Literal("fatal"),
  ]),
  link_layer: t.Union([t.Literal("infiniband"), t.Literal("ethernet")]),
  gbit_per_second: t.Number({ minimum: 0, description: "0: unknown" }),
  numa_node: numaNode,
  relaxed_ordering: t.Boolean({ description: "Whether its writes may pass one another" }),
  dma_buf: t.Boolean({ description: "Whether it can reach memory of other devices" }),
});

const direct = t.Object({
  gpu: t.String({ description: "Name and address of the GPU" }),
  port: nullable(t.String({ description: "The port that was tried; null: none is active" })),
  works: t.Boolean({ description: "Whether what it wrote to the GPU's memory arrived" }),
  text,
  fix,
});

/** `rdma` of the status. */
export const rdmaStatus = t.Union(
  [
    t.Object({
      found,
      text,
      fix,
      ports: t.Array(port),
      direct: t.Array(direct, {
        description: "Tried at the start, for each GPU; blocks go through RAM whatever came of it",
      }),
    }),
    t.Null(),
  ],
  { description: "RDMA devices; null where peers, or RDMA among them, are off" },
);
