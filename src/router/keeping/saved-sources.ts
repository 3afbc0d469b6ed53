import { isWorkerId, type Json, parseJson, stringifyJson } from "../../core/index.ts";
import type { KeySpace } from "../../observability/activity/index.ts";
import type { FollowedSource } from "../intake/index.ts";
import type { TargetId, WorkerRole, WorkerSpec } from "../workers.ts";

/** A source with what the table knows of its worker. */
export interface SavedSource extends Omit<FollowedSource, "isKnown"> {
  readonly spec: WorkerSpec;
}

/** What belongs to one saved index. */
export interface SavedState {
  /** Name of the index's file. */
  readonly indexFile: string;
  readonly wallMs: number;
  /** All targets had smaller numbers, also those that are not among the sources. */
  readonly targetsEnd: number;
  readonly sources: readonly SavedSource[];
}

const VERSION = 1;
const DEPTH_MAX = 8;
const ROLES: readonly WorkerRole[] = ["both", "prefill", "decode"];

/** A line with a checksum of the next, and that. */
export function encodeState(state: SavedState): string {
  const body = stringifyJson({
    version: VERSION,
    index: state.indexFile,
    saved_at: state.wallMs,
    targets_end: state.targetsEnd,
    sources: state.sources.map(({ source, target, sequence, isDeviceKnown, spaces, spec }) => ({
      ...{ worker: source.worker, rank: source.rank, incarnation: source.incarnation },
      device_known: isDeviceKnown,
      ...{ target, sequence, model: spec.model, role: spec.role, url: spec.url },
      ...{ total_blocks: spec.totalBlocks, batch_tokens_max: spec.batchTokensMax },
      spaces: spaces.map((space) => ({
        ...{ kind: space.kind, model: space.model, block_tokens: space.blockTokens },
        ...(space.kind === "blocks" ? { namespace: space.namespaceKey.toHex() } : {}),
        ...(space.kind === "blocks" && space.chain !== undefined ? { chain: space.chain } : {}),
      })),
    })),
  });
  return `${checksumOf(body)}\n${body}\n`;
}

/** Null: it is damaged, or of another version. */
export function readState(text: string): SavedState | null {
  const [checksum, body, rest] = text.split("\n");
  if (body === undefined || rest !== "" || checksum !== checksumOf(body)) return null;
  const fields = parseJson(body, DEPTH_MAX) as Fields;
  if (fields.version !== VERSION || !Array.isArray(fields.sources)) return null;
  const sources = fields.sources.map((source) => sourceIn(source as Fields));
  const isWhole = typeof fields.index === "string" && typeof fields.saved_at === "number";
  if (!isWhole || sources.includes(null)) return null;
  return {
    indexFile: fields.index as string,
    wallMs: fields.saved_at as number,
    targetsEnd: Number(fields.targets_end),
    sources: sources as SavedSource[],
  };
}

type Fields = { readonly [name: string]: Json | undefined };

function sourceIn(fields: Fields): SavedSource | null {
  const { worker, rank, incarnation, target, sequence, model, role } = fields;
  const spaces = Array.isArray(fields.spaces) ? fields.spaces : [];
  if (typeof worker !== "string" || !isWorkerId(worker) || typeof model !== "string") return null;
  const read = spaces.map((space) => spaceIn(space as Fields));
  const spec: WorkerSpec = {
    ...{ worker, rank: Number(rank), model, spaces: read },
    role: ROLES.find((one) => one === role) ?? "both",
    url: typeof fields.url === "string" ? fields.url : null,
    totalBlocks: numberOrNull(fields.total_blocks),
    batchTokensMax: numberOrNull(fields.batch_tokens_max),
  };
  const source = { worker, rank: spec.rank, incarnation: BigInt(incarnation as number) };
  const isDeviceKnown = fields.device_known !== false;
  const of = { target: Number(target) as TargetId, sequence: Number(sequence), isDeviceKnown };
  return { source, ...of, spaces: read, spec };
}

function spaceIn(fields: Fields): KeySpace {
  const { kind, model, block_tokens: blockTokens, namespace, chain } = fields;
  const of = { model: String(model), blockTokens: Number(blockTokens) };
  if (kind !== "blocks") return { kind: "tokens", ...of };
  const space = { kind, ...of, namespaceKey: Uint8Array.fromHex(String(namespace)) } as const;
  return typeof chain === "string" ? { ...space, chain } : space;
}

function numberOrNull(value: Json | undefined): number | null {
  return typeof value === "number" ? value : null;
}

function checksumOf(body: string): string {
  return Bun.hash.xxHash3(body).toString(16).padStart(16, "0");
}
