import { type Clock, HearthError, type Json } from "../../core/index.ts";
import { defineCommand } from "../command.ts";
import {
  API_URL,
  Asking,
  bytesOf,
  connectionFlags,
  discover,
  listOf,
  membersOf,
  openNats,
  plain,
  READ_EXITS,
  secondsOf,
  textOf,
} from "../ctl/index.ts";
import type { ExitName } from "../exit-codes.ts";
import type { Io } from "../io.ts";
import { printJson, printRecord, type Row } from "../output.ts";

export const command = defineCommand({
  description: [
    "Tells what an agent is and holds, and what is the matter with it. Through NATS only who it " +
      "is: version and incarnation, as discovery has them.",
  ],
  arguments: {},
  flags: connectionFlags,
  examples: [
    { words: "ctl status", what: "the agent of this host" },
    {
      words: "ctl status --api https://node-1:7171 --ca ca.pem --token-file token",
      what: "one on another host",
    },
    { words: "ctl status --nats nats://127.0.0.1:4222 --worker node-1", what: "whether it lives" },
  ],
  exits: READ_EXITS,
  async run({ flags, ...rest }) {
    const { io } = rest;
    if (flags.nats !== null) return discovered({ flags, ...rest }, flags.nats);
    await using asking = await Asking.open({ name: "ctl status", flags, ...rest });
    const answer = await asking.get("/v1/status");
    if (!answer.ok) return answer.exit;
    const id = membersOf(answer.document).worker_id;
    if (flags.worker !== null && id !== flags.worker) {
      const there = `${flags.socket ?? flags.api ?? API_URL} is ${textOf(id)}`;
      io.err.write(`hearth ctl status: ${there}, not ${plain(flags.worker)}\n`);
      return "noAnswer";
    }
    if (flags.json) printJson(io, answer.document);
    else printStatus(io, answer.document);
    return "ok";
  },
});

const DISCOVERY_MS = 2_000;
const DEPTH_MAX = 2;

interface DiscoveryContext {
  readonly flags: Parameters<typeof openNats>[0] & {
    readonly worker: string | null;
    readonly deadline: number;
    readonly json: boolean;
  };
  readonly io: Io;
  readonly clock: Clock;
  interrupt(): AbortSignal;
}

/** What NATS tells of a worker. */
async function discovered(
  { flags, io, clock, interrupt }: DiscoveryContext,
  nats: string,
): Promise<ExitName> {
  if (flags.worker === null) {
    throw new HearthError("USAGE", "--nats reaches many workers", {
      fix: "name one with --worker, or list them with `hearth ctl workers`",
    });
  }
  await using client = openNats(flags, nats, clock);
  const ms = Math.min(flags.deadline, DISCOVERY_MS);
  const found = await discover(client, { name: "ctl status", io }, ms, interrupt());
  if (found === null) return "noAnswer";
  const worker = found.find(({ id }) => id === flags.worker);
  if (worker === undefined) {
    io.err.write(`hearth ctl status: ${plain(flags.worker)} does not answer discovery\n`);
    return "noAnswer";
  }
  const { id, version, incarnation } = worker;
  const known = { worker_id: id, version, incarnation };
  if (flags.json) printJson(io, known);
  else printRecord(io, shown(known), false);
  return "ok";
}

function printStatus(io: Io, document: Json): void {
  const { health, namespaces, build: _build, ...members } = membersOf(document);
  printRecord(io, shown(members), false);
  // Whole: `hearth ctl explain --tokens` wants one.
  const keys = Array.isArray(namespaces) ? namespaces : [];
  for (const key of keys) io.out.write(`namespace ${textOf(key)}\n`);
  for (const { name, pci, lost } of listOf(members.gpu, "devices")) {
    const state = lost === null ? "ok" : `lost, ${textOf(lost)}`;
    io.out.write(`GPU ${textOf(name)} at ${textOf(pci)}: ${state}\n`);
  }
  for (const { name, state } of listOf(members.rdma, "ports")) {
    io.out.write(`RDMA port ${textOf(name)}: ${textOf(state)}\n`);
  }
  for (const problem of listOf({ health }, "health")) {
    const { severity, code, meaning } = problem;
    io.out.write(`${textOf(severity)} ${textOf(code)}: ${textOf(meaning)}\n`);
  }
}

/** "2 holds, 5 blocks, 20.0 KiB". */
function heldText({ holds, blocks, bytes }: Readonly<Record<string, unknown>>): string {
  return `${textOf(holds)} holds, ${textOf(blocks)} blocks, ${bytesOf(bytes)}`;
}

/** Members of members under one name (`ram.blocks`), sizes and times as people read them. */
function shown(members: Readonly<Record<string, unknown>>, prefix = "", depth = 1): Row {
  const row: Record<string, string> = {};
  for (const [name, value] of Object.entries(members)) {
    const path = plain(`${prefix}${name}`);
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
    if (isObject && depth < DEPTH_MAX)
      Object.assign(row, shown(membersOf(value), `${path}.`, depth + 1));
    else if (isObject && "holds" in value) row[path] = heldText(membersOf(value));
    else if (typeof value === "object" && value !== null) continue;
    else if (/(?:^|_)bytes(?:_max)?$/.test(name)) row[path] = bytesOf(value);
    else if (/_seconds$/.test(name)) row[path] = secondsOf(value);
    else row[path] = textOf(value);
  }
  return row;
}
