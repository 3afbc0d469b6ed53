import { choiceKind, durationKind, integerKind, pathKind, patternKind } from "../../core/index.ts";
import { zmqKind } from "../address-kinds.ts";
import { optional, section, withDefault } from "../spec.ts";

/** Keys of [engine] about the engine's own KV events. */
const engineEventKeys = {
  kvEvents: optional({
    key: "kv_events",
    kind: zmqKind({ mayListen: false, example: "tcp://127.0.0.1:5557" }),
    doc:
      "ZMQ endpoint where the engine on this host publishes KV events (`--kv-events-config`); " +
      "rank N uses this port plus N. The agent mirrors the state of the GPU from these events " +
      "and publishes it.",
    example: "tcp://127.0.0.1:5557",
  }),
  kvReplay: optional({
    key: "kv_events_replay",
    kind: zmqKind({ mayListen: false, example: "tcp://127.0.0.1:5558" }),
    doc:
      "The engine's `replay_endpoint`. Without it the agent detects missed events but cannot " +
      "recover them, and blocks that the engine stored before the agent started are unknown.",
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
    doc:
      "The model that the engine serves, by the name that requests use. Required with " +
      "`kv_events`.",
    example: "meta-llama/Llama-3.1-8B-Instruct",
  }),
  kvBlockTokens: optional({
    key: "kv_events_block_tokens",
    kind: integerKind({ min: 1, max: 65_536 }),
    doc:
      "Tokens per block of the engine (`--block-size`, `--page-size`). If unset, the size in " +
      "its events is used. If the events differ, their size is used and `FEED_BLOCK_TOKENS` " +
      "names both.",
    example: 16,
  }),
  kvRanks: withDefault({
    key: "kv_events_ranks",
    kind: integerKind({ min: 1, max: 256 }),
    defaultValue: 1,
    doc:
      "Data parallel ranks of the engine on this host. Events are published for each rank; RAM " +
      "and SSD of the host count for all ranks.",
  }),
} as const;

/** `sun_path` holds 108 bytes with the NUL at its end (unix(7)). */
const SOCKET_PATH_BYTES_MAX = 107;

const MINUTE_MS = 60_000;

const DAY_MS = 24 * 60 * MINUTE_MS;

const socket = withDefault({
  key: "socket",
  kind: pathKind({ bytesMax: SOCKET_PATH_BYTES_MAX, example: "/run/hearth/engine.sock" }),
  defaultValue: "/run/hearth/engine.sock",
  doc:
    "The Unix socket that engines connect to. Its mode is 0660; its folder should belong to the " +
    "agent with mode 0750. The kernel limits the path to 107 bytes.",
});

export const groupKind = patternKind<string>({
  name: "group name",
  pattern: /^(?:[a-z_][a-z0-9_-]{0,30}\$?|[0-9]{1,10})$/,
  words: "a group name or number",
  example: "hearth",
});

export const engineSection = section("The socket for engines on this host.", {
  socket,
  socketGroup: optional({
    key: "socket_group",
    kind: groupKind,
    doc:
      "The group that owns the socket. Engines of other users in that group can connect. If " +
      "unset: the group of the agent's process.",
    example: "hearth",
  }),
  commandRole: withDefault({
    key: "command_role",
    kind: choiceKind(["read", "operate", "purge"]),
    defaultValue: "operate",
    reload: true,
    doc:
      "Role of commands that engines send over their connections (COMMAND): `operate` pins, " +
      "pauses and warms; `purge` also removes blocks, which deletes of LMCache need.",
  }),
  clientsMax: withDefault({
    key: "clients_max",
    kind: integerKind({ min: 1, max: 4096 }),
    defaultValue: 256,
    reload: true,
    doc:
      "Maximum connected engine processes. Further connections are refused with a message. Each " +
      "connection needs two file descriptors.",
  }),
  leaseMs: withDefault({
    key: "lease",
    kind: durationKind({ min: 1_000, max: 60 * MINUTE_MS, example: "30s" }),
    defaultValue: "30s",
    doc:
      "Maximum silence of a connection that has blocks reserved or acquired; after it the " +
      "connection is closed. Its slots are not reused while its process lives. Clients send a " +
      "ping within this time.",
  }),
  acquireDeadlineMs: withDefault({
    key: "acquire_deadline",
    kind: durationKind({ min: 1, max: MINUTE_MS, example: "2s" }),
    defaultValue: "2s",
    doc:
      "Default deadline of an acquire that names none. Blocks that have not arrived by the " +
      "deadline are answered `late`. Shorter than `lease`.",
  }),
  sessionIdleMs: withDefault({
    key: "session_idle",
    kind: durationKind({ min: 1_000, max: 30 * DAY_MS, example: "1h" }),
    defaultValue: "1h",
    reload: true,
    doc:
      "Idle timeout of a session without a commit. Until the session ends, its last block and the " +
      "ancestors of that block stay in RAM; afterwards they age like any other block.",
  }),
  ...engineEventKeys,
});
