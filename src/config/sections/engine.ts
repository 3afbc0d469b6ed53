import { zmqKind } from "../address-kinds.ts";
import {
  choiceKind,
  durationKind,
  integerKind,
  pathKind,
  patternKind,
  ratioKind,
  sizeKind,
} from "../kinds.ts";
import { optional, section, withDefault } from "../spec.ts";

const KIB = 2 ** 10;

const MIB = 2 ** 20;

/** Keys of [engine] on the engine's own KV events. */
const engineEventKeys = {
  kvEvents: optional({
    key: "kv_events",
    kind: zmqKind({ mayListen: false, example: "tcp://127.0.0.1:5557" }),
    reload: false,
    doc:
      "Where the engine on this host publishes KV events over ZMQ (`--kv-events-config`), rank N " +
      "at the port N above it. What they say of the GPU is mirrored and passed on.",
    example: "tcp://127.0.0.1:5557",
  }),
  kvReplay: optional({
    key: "kv_events_replay",
    kind: zmqKind({ mayListen: false, example: "tcp://127.0.0.1:5558" }),
    reload: false,
    doc:
      "Its `replay_endpoint`. Without one, what was missed is known to be missing, and what the " +
      "engine held before is not known.",
    example: "tcp://127.0.0.1:5558",
  }),
  kvModel: optional({
    key: "kv_events_model",
    kind: patternKind<string>({
      name: "model name",
      pattern: /^[\x21-\x7e]{1,256}$/,
      words: "1 to 256 printable characters without blanks",
      example: "meta-llama/Llama-3.1-8B-Instruct",
    }),
    reload: false,
    doc: "The model the engine serves, as requests name it. Needed with `kv_events`.",
    example: "meta-llama/Llama-3.1-8B-Instruct",
  }),
  kvBlockTokens: optional({
    key: "kv_events_block_tokens",
    kind: integerKind({ min: 1, max: 65_536 }),
    reload: false,
    doc:
      "Tokens in a block of the engine (`--block-size`, `--page-size`). Unset: what its events " +
      "say. If they say otherwise, their size is used and `FEED_BLOCK_TOKENS` names both.",
    example: 16,
  }),
  kvRanks: withDefault({
    key: "kv_events_ranks",
    kind: integerKind({ min: 1, max: 256 }),
    standard: 1,
    reload: false,
    doc:
      "Data parallel ranks of the engine on this host. Each is told of by itself; RAM and SSD of " +
      "the host count for all of them.",
  }),
} as const;

/** `sun_path` holds 108 bytes with the NUL at its end (unix(7)). */
const SOCKET_PATH_BYTES_MAX = 107;

const MINUTE_MS = 60_000;

const DAY_MS = 24 * 60 * MINUTE_MS;

const socket = withDefault({
  key: "socket",
  kind: pathKind({ bytesMax: SOCKET_PATH_BYTES_MAX, example: "/run/hearth/engine.sock" }),
  standard: "/run/hearth/engine.sock",
  reload: false,
  doc:
    "The Unix socket engines connect to. It gets mode 0660; its folder should be 0750 and " +
    "belong to the agent. The path is limited to 107 bytes by the kernel.",
});

export const groupKind = patternKind<string>({
  name: "group name",
  pattern: /^(?:[a-z_][a-z0-9_-]{0,30}\$?|[0-9]{1,10})$/,
  words: "the name or number of a group",
  example: "hearth",
});

const commandRole = withDefault({
  key: "command_role",
  kind: choiceKind(["read", "operate", "purge"]),
  standard: "operate",
  reload: true,
  doc:
    "What commands may do that engines send over their own connections (COMMAND): `operate` " +
    "pins, pauses and warms, `purge` also removes blocks, which LMCache's deletes need.",
});

const socketGroup = optional({
  key: "socket_group",
  kind: groupKind,
  reload: false,
  doc:
    "The group that owns the socket, so that engines of other users in that group can connect. " +
    "Unset: the group the agent runs under.",
  example: "hearth",
});

const clientsMax = withDefault({
  key: "clients_max",
  kind: integerKind({ min: 1, max: 4096 }),
  standard: 256,
  reload: true,
  doc:
    "How many engine processes may be connected at once; the next one is refused in words. Each " +
    "takes two file descriptors.",
});

const clientsPerProcess = withDefault({
  key: "clients_per_process",
  kind: integerKind({ min: 1, max: 4096 }),
  standard: 32,
  reload: true,
  doc:
    "How many of these connections one process may have. The last eighth of `clients_max` is " +
    "kept for processes that have none.",
});

const heldShare = withDefault({
  key: "held_share",
  kind: ratioKind({ min: 0.05, max: 1 }),
  standard: 0.5,
  reload: true,
  doc:
    "Share of RAM whose slots one engine may hold, reserved or acquired, while other engines are " +
    "connected; beyond it a block is answered `full`. All connections that joined as one engine " +
    "count together. An engine that is alone may hold seven eighths. 1: no limit.",
});

const frameBytesMax = withDefault({
  key: "frame_max",
  kind: sizeKind({ min: 4 * KIB, max: 64 * MIB, multiple: 8, example: "1MiB" }),
  standard: "1MiB",
  reload: false,
  doc:
    "The largest frame either side may send. It must hold a reservation of `items_max` blocks: " +
    "32 bytes and 80 for each. Engines learn it when they connect.",
});

const itemsMax = withDefault({
  key: "items_max",
  kind: integerKind({ min: 16, max: 65_536 }),
  standard: 4096,
  reload: false,
  doc:
    "How many blocks one request may name. Engines learn it when they connect and split longer " +
    "prompts. Larger values let one request hold the agent's loop for longer.",
});

const handlesMax = withDefault({
  key: "handles_max",
  kind: integerKind({ min: 16, max: 2 ** 20 }),
  standard: 65_536,
  reload: false,
  doc:
    "How many blocks one connection may hold reserved or acquired at a time; beyond it a block " +
    "is answered `rejected`. At least `items_max`.",
});

const leaseMs = withDefault({
  key: "lease",
  kind: durationKind({ min: 1_000, max: 60 * MINUTE_MS, example: "30s" }),
  standard: "30s",
  reload: false,
  doc:
    "How long a connection that holds blocks may stay silent before it is cut off. What it held " +
    "is not reused while its process lives. Clients send a ping within this time.",
});

const unreadBytesMax = withDefault({
  key: "unread_max",
  kind: sizeKind({ min: 64 * KIB, max: 256 * MIB, example: "4MiB" }),
  standard: "4MiB",
  reload: false,
  doc:
    "How many bytes of answers may wait for one client that does not read, before the agent " +
    "stops reading from it. At least `frame_max`.",
});

const drainStallMs = withDefault({
  key: "drain_stall",
  kind: durationKind({ min: 100, max: 5 * MINUTE_MS, example: "5s" }),
  standard: "5s",
  reload: true,
  doc:
    "How long a client whose answers wait at `unread_max` may go on not reading before its " +
    "connection is closed.",
});

const acquireDeadlineMs = withDefault({
  key: "acquire_deadline",
  kind: durationKind({ min: 1, max: MINUTE_MS, example: "2s" }),
  standard: "2s",
  reload: false,
  doc:
    "How long an acquire may wait for blocks when the engine names no deadline itself. Blocks " +
    "that are not there by then are answered `late`. Shorter than `lease`.",
});

const gpuWindowBlocks = withDefault({
  key: "gpu_window_blocks",
  kind: integerKind({ min: 0, max: 2 ** 26 }),
  standard: 262_144,
  reload: false,
  doc:
    "How many blocks of the engines' GPU memory the agent mirrors, all engines together; beyond " +
    "it the oldest notices are forgotten. 0 keeps no mirror. Counts towards `kv.blocks_max`.",
});

const sessionIdleMs = withDefault({
  key: "session_idle",
  kind: durationKind({ min: 1_000, max: 30 * DAY_MS, example: "1h" }),
  standard: "1h",
  reload: true,
  doc:
    "How long a session may stay without a commit before it ends by itself. Until then its last " +
    "block and all before it stay in RAM; from then on they age like any other block.",
});

const reservedShare = withDefault({
  key: "reserved_share",
  kind: ratioKind({ min: 0, max: 0.95 }),
  standard: 0.4,
  reload: true,
  doc:
    "Share of RAM that the reservations of one engine may keep from being evicted: blocks that " +
    "its scheduler looked up and its workers have not acquired yet. 0 reserves nothing.",
});

const reservedShareAll = withDefault({
  key: "reserved_share_all",
  kind: ratioKind({ min: 0, max: 0.95 }),
  standard: 0.6,
  reload: true,
  doc: "The same for the reservations of all engines on this host together.",
});

export const engineSection = section("The socket that engines on this host speak to.", {
  socket,
  socketGroup,
  commandRole,
  clientsMax,
  clientsPerProcess,
  heldShare,
  frameBytesMax,
  itemsMax,
  handlesMax,
  leaseMs,
  unreadBytesMax,
  drainStallMs,
  acquireDeadlineMs,
  gpuWindowBlocks,
  sessionIdleMs,
  reservedShare,
  reservedShareAll,
  ...engineEventKeys,
});
