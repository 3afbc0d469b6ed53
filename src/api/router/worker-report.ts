import { t } from "elysia";
import type { KeySpace } from "../../events/index.ts";
import type { PotentialLoad, Target, TargetLoad } from "../../router/index.ts";
import { count, nullable } from "../fields.ts";

const load = {
  active_blocks: count("Blocks of its live requests"),
  active_prefill_tokens: count("Prompt tokens that wait for its prefill"),
  active_requests: count("Live requests"),
};

const place = { worker: t.String(), rank: count("Data parallel rank") };

const workerReport = t.Object({
  ...place,
  model: t.String(),
  role: t.String({ description: "`both`, `prefill`, `decode`" }),
  url: nullable(t.String()),
  state: t.String({ description: "`live`, `stale`, `draining`" }),
  known: t.Boolean({ description: "Whether what it holds is known" }),
  total_blocks: nullable(count("KV blocks of its GPU")),
  batch_tokens_max: nullable(count("Tokens of one step")),
  spaces: t.Array(
    t.Object({
      kind: t.String({ description: "What its blocks are named by: `tokens` or `blocks`" }),
      block_tokens: count("Tokens in a block"),
      namespace: t.Optional(t.String({ description: "Of `blocks`, in hex" })),
    }),
  ),
  load: t.Object(load),
});

const EXAMPLE = {
  worker: "gpu-01",
  rank: 0,
  model: "m",
  role: "both",
  url: null,
  state: "live",
  known: true,
  total_blocks: 12_000,
  batch_tokens_max: null,
  spaces: [{ kind: "tokens", block_tokens: 16 }],
  load: { active_blocks: 120, active_prefill_tokens: 0, active_requests: 3 },
};

/** Body of `GET /v1/workers`. */
export const workersReport = t.Object(
  { workers: t.Array(workerReport) },
  { examples: [{ workers: [EXAMPLE] }] },
);

const loadReport = t.Object({
  ...place,
  model: t.String(),
  ...load,
  total_blocks: nullable(count("KV blocks of its GPU")),
});

/** Body of `GET /v1/loads`. */
export const loadsReport = t.Object(
  { loads: t.Array(loadReport) },
  {
    examples: [
      {
        loads: [{ worker: "gpu-01", rank: 0, model: "m", ...EXAMPLE.load, total_blocks: 12_000 }],
      },
    ],
  },
);

/** Body of `POST /v1/loads`. */
export const potentialReport = t.Object(
  {
    loads: t.Array(
      t.Object({
        ...place,
        ...load,
        potential_prefill_tokens: count("With this prompt there"),
        potential_decode_blocks: count("With this prompt there"),
        held_tokens: t.Object({
          device: count("Of the prompt, held on the device"),
          host: count("From there on, held in host memory"),
          disk: count("From there on, held on disk"),
        }),
      }),
    ),
  },
  {
    examples: [
      {
        loads: [
          {
            ...{ worker: "gpu-01", rank: 0, ...EXAMPLE.load },
            ...{ potential_prefill_tokens: 216, potential_decode_blocks: 143 },
            held_tokens: { device: 640, host: 192, disk: 0 },
          },
        ],
      },
    ],
  },
);

function loadOf(load: TargetLoad) {
  return {
    active_blocks: load.activeBlocks,
    active_prefill_tokens: load.activePrefillTokens,
    active_requests: load.activeRequests,
  };
}

function spaceOf(space: KeySpace) {
  const { kind, blockTokens: block_tokens } = space;
  if (kind === "tokens") return { kind, block_tokens };
  return { kind, block_tokens, namespace: space.namespaceKey.toHex() };
}

export function workerOf(target: Target, load: TargetLoad) {
  const { worker, rank, model, role, url, state } = target;
  return {
    ...{ worker, rank, model, role, url, state },
    known: target.isKnown,
    total_blocks: target.totalBlocks,
    batch_tokens_max: target.batchTokensMax,
    spaces: target.spaces.map(spaceOf),
    load: loadOf(load),
  };
}

export function loadLineOf({ worker, rank, model, totalBlocks }: Target, load: TargetLoad) {
  return { worker, rank, model, ...loadOf(load), total_blocks: totalBlocks };
}

export function potentialOf(load: PotentialLoad) {
  const { worker, rank } = load;
  return {
    ...{ worker, rank },
    ...loadOf(load),
    potential_prefill_tokens: load.potentialPrefillTokens,
    potential_decode_blocks: load.potentialDecodeBlocks,
    held_tokens: load.heldTokens,
  };
}
