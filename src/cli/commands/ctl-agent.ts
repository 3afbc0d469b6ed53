import { newCommandId, warm } from "../../control/client/index.ts";
import {
  type Clock,
  durationKind,
  HearthError,
  integerKind,
  type Json,
  sleep,
  textKind,
} from "../../core/index.ts";
import {
  defineCommand,
  type ExitName,
  jsonFlag,
  repeated,
  required,
  requiredArgument,
  toggle,
  urlKind,
  withDefault,
} from "../command.ts";
import { Asking, READ_EXITS } from "../ctl/ask.ts";
import {
  API_URL,
  connectionFlags,
  discover,
  natsFlags,
  openNats,
  readFlags,
} from "../ctl/connect.ts";
import {
  bytesOf,
  listOf,
  type Members,
  membersOf,
  nameOf,
  plain,
  secondsOf,
  textOf,
} from "../ctl/documents.ts";
import { blockName } from "../ctl/input.ts";
import { CTL_EXITS } from "../ctl/send-command.ts";
import { fitted, type Io, printJson, printRecord, printRows, type Row } from "../terminal.ts";

export const ctlStatusCommand = defineCommand({
  description: [
    "Shows the identity, contents and health problems of an agent. Through NATS only its " +
      "version and incarnation are known, from discovery.",
  ],
  arguments: {},
  flags: connectionFlags,
  examples: [
    { words: "ctl status", what: "the agent of this host" },
    {
      words: "ctl status --api https://node-1:7171 --ca ca.pem --token-file token",
      what: "one on another host",
    },
    {
      words: "ctl status --nats nats://127.0.0.1:4222 --worker node-1",
      what: "whether it is running",
    },
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

/** Prints the worker's entry in the NATS discovery. */
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
  else printRecord(io, readable(known), false);
  return "ok";
}

function printStatus(io: Io, document: Json): void {
  const { health, namespaces, build: _build, ...members } = membersOf(document);
  printRecord(io, readable(members), false);
  // Keys are printed in full, because `hearth ctl explain --tokens` needs one.
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

/** Formats totals of an owner's pins and leases: "2 holds, 5 blocks, 20.0 KiB". */
function heldText({ holds, blocks, bytes }: Readonly<Record<string, unknown>>): string {
  return `${textOf(holds)} holds, ${textOf(blocks)} blocks, ${bytesOf(bytes)}`;
}

/**
 * Flattens nested members to dotted names (`ram.blocks`) and formats sizes and times for people.
 */
function readable(members: Readonly<Record<string, unknown>>, prefix = "", depth = 1): Row {
  const row: Record<string, string> = {};
  for (const [name, value] of Object.entries(members)) {
    const path = plain(`${prefix}${name}`);
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
    if (isObject && depth < DEPTH_MAX)
      Object.assign(row, readable(membersOf(value), `${path}.`, depth + 1));
    else if (isObject && "holds" in value) row[path] = heldText(membersOf(value));
    else if (typeof value === "object" && value !== null) continue;
    else if (/(?:^|_)bytes(?:_max)?$/.test(name)) row[path] = bytesOf(value);
    else if (/_seconds$/.test(name)) row[path] = secondsOf(value);
    else row[path] = textOf(value);
  }
  return row;
}

export const ctlWorkersCommand = defineCommand({
  description: [
    "Lists the workers that answer discovery on a NATS server: those that commands can reach.",
  ],
  arguments: {},
  flags: {
    ...natsFlags,
    nats: required(urlKind, "the NATS server"),
    wait: withDefault(
      durationKind({ min: 10, max: 60_000 }),
      1_000,
      "how long to wait for answers",
    ),
    json: jsonFlag,
  },
  examples: [
    { words: "ctl workers --nats nats://127.0.0.1:4222", what: "a line for each worker" },
    { words: "ctl workers --nats tls://broker:4222 --ca ca.pem --json", what: "as JSON" },
  ],
  exits: ["noAnswer", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    await using client = openNats(flags, flags.nats, clock);
    const found = await discover(client, { name: "ctl workers", io }, flags.wait, interrupt());
    if (found === null) return "noAnswer";
    printRows(
      io,
      found.map(({ id, version, incarnation }) => ({
        worker: plain(id),
        version: plain(version),
        incarnation: plain(incarnation ?? ""),
      })),
      flags.json,
    );
    if (found.length === 0) io.err.write("hearth ctl workers: no worker answered discovery\n");
    return found.length === 0 ? "noAnswer" : "ok";
  },
});

const PAGE = 1_000;

const POLL_MS = 1_000;

/** Members of an event that its line shows first; all others follow as `name=value`. */
const PLACED = new Set(["sequence", "time", "kind"]);

export const ctlEventsCommand = defineCommand({
  description: [
    "Prints events of pins, leases, peers and commands since the agent's start, as far as " +
      "the log keeps them: evicted pins, expired leases, retentions whose blocks were lost, " +
      "and peers that joined, left, failed or sent unrequested data.",
  ],
  arguments: {},
  flags: {
    after: withDefault(integerKind({ min: 0 }), 0, "only events after this sequence number"),
    follow: toggle("continue until interrupted"),
    ...readFlags,
  },
  examples: [
    { words: "ctl events", what: "a line for each" },
    { words: "ctl events --follow --json", what: "as they come, as JSON" },
  ],
  exits: READ_EXITS,
  async run({ flags, ...rest }) {
    const { io, clock, interrupt } = rest;
    await using asking = await Asking.open({ name: "ctl events", flags, ...rest });
    for (let after = flags.after; ; ) {
      const answer = await asking.get("/v1/events", { after, limit: PAGE });
      if (!answer.ok) return answer.exit;
      const { next, lost } = membersOf(answer.document);
      if (Number(lost) > 0) io.err.write(`${lost} events are not kept any more\n`);
      const events = listOf(answer.document, "events");
      for (const event of events) {
        if (flags.json) printJson(io, event);
        else io.out.write(`${fitted(io.out, lineOf(event))}\n`);
      }
      if (typeof next === "number") after = next;
      if (events.length < PAGE && !flags.follow) return "ok";
      if (events.length < PAGE) await sleep(clock, POLL_MS, interrupt());
    }
  },
});

/** Formats an event: `41  2026-01-01T00:00:00.000Z  hold_relieved  hold=pin owner=team-a`. */
function lineOf(event: Members): string {
  const members = Object.entries(event).flatMap(([name, value]) =>
    PLACED.has(name) || value === null ? [] : [`${name}=${textOf(value)}`],
  );
  const { sequence, time, kind } = event;
  return [textOf(sequence), textOf(time), textOf(kind), members.join(" ")].join("  ").trimEnd();
}

export const ctlPeersCommand = defineCommand({
  description: [
    "Lists the peers of an agent: state, transport, bytes per second, and remaining validity of " +
      "the certificate.",
  ],
  arguments: {},
  flags: readFlags,
  examples: [
    { words: "ctl peers", what: "a row for each host" },
    { words: "ctl peers --json", what: "as the agent answers, with addresses and hardware" },
  ],
  exits: READ_EXITS,
  async run({ flags, ...rest }) {
    const { io, clock } = rest;
    await using asking = await Asking.open({ name: "ctl peers", flags, ...rest });
    const answer = await asking.get("/v1/peers");
    if (!answer.ok) return answer.exit;
    if (flags.json) printJson(io, answer.document);
    else printPeers(io, answer.document, clock.wallMs());
    return "ok";
  },
});

function printPeers(io: Io, document: Json, nowMs: number): void {
  const { enabled, cluster, certificate_ends: ends, listening } = membersOf(document);
  if (enabled !== true) {
    io.out.write("this agent has no peers: peers.cert_file is not set\n");
    return;
  }
  printRows(
    io,
    listOf(document, "peers").map((peer) => peerRow(peer, nowMs)),
    false,
  );
  const places = Object.entries(membersOf(listening)).map(
    ([name, place]) => `${textOf(name)} ${placeOf(membersOf(place))}`,
  );
  const own = [`cluster ${textOf(cluster)}`, ...places, `certificate ${leftOf(ends, nowMs)}`];
  io.out.write(`this host: ${own.join(", ")}\n`);
}

function peerRow(peer: Members, nowMs: number) {
  const { goodput_bytes_per_second: goodput, rtt_ms: rtt, cooldown_ms: cooldown } = peer;
  const breaker = textOf(peer.breaker);
  return {
    worker: textOf(peer.worker_id),
    state: textOf(peer.state),
    transport: textOf(peer.transport),
    goodput: goodput === null ? "-" : `${bytesOf(goodput)}/s`,
    rtt: typeof rtt === "number" ? `${Number(rtt.toPrecision(3))}ms` : "-",
    breaker: typeof cooldown === "number" ? `${breaker} ${secondsOf(cooldown / 1_000)}` : breaker,
    pulled: bytesOf(peer.pulled_bytes),
    certificate: leftOf(peer.certificate_ends, nowMs),
    fault: textOf(peer.last_fault),
  };
}

/** Formats the time left until `time`: `29.5d`; `over` if it has passed. */
function leftOf(time: unknown, nowMs: number): string {
  const ms = typeof time === "string" ? Date.parse(time) - nowMs : Number.NaN;
  if (Number.isNaN(ms)) return "-";
  return ms <= 0 ? "over" : secondsOf(ms / 1_000);
}

function placeOf({ host, port }: Members): string {
  const name = textOf(host);
  return `${name.includes(":") ? `[${name}]` : name}:${textOf(port)}`;
}

export const ctlTracePullCommand = defineCommand({
  description: [
    "Shows the steps of the last pull of a block: the candidate peers, the requests and their " +
      "transports, and the answers with their times. With --now the block is warmed first, from " +
      "any tier or peer.",
    "An agent keeps the traces of the latest 4,096 pulls. A block in RAM is not pulled.",
  ],
  arguments: { block: requiredArgument(blockName, "an engine's hash, a page key or a digest") },
  flags: {
    now: toggle("warm the block now, and show that"),
    source: repeated(textKind("WORKER"), "with --now: a worker that may have it"),
    limit: withDefault(integerKind({ min: 1, max: 1_000 }), 1, "pulls at most, the latest first"),
    ...readFlags,
  },
  examples: [
    { words: "ctl trace-pull 1234567890", what: "the last pull of this block" },
    { words: "ctl trace-pull --now --source gpu-02 1234567890", what: "pull it now" },
  ],
  exits: CTL_EXITS,
  async run({ flags, arguments: { block }, ...rest }) {
    const { io } = rest;
    await using asking = await Asking.open({ name: "ctl trace-pull", flags, ...rest });
    if (flags.now) {
      const sources = flags.source.length === 0 ? {} : { sources: flags.source };
      const wish = { ...warm([block], sources), id: newCommandId() };
      const warmed = await asking.post("/v1/commands", wish as unknown as Json);
      if (!warmed.ok) return warmed.exit;
      io.err.write(`hearth ctl trace-pull: ${outcomeOf(warmed.document)}\n`);
    }
    const answer = await asking.get("/v1/pulls", { key: String(block), limit: flags.limit });
    if (!answer.ok) return answer.exit;
    const pulls = listOf(answer.document, "pulls");
    for (const pull of pulls) {
      if (flags.json) printJson(io, pull);
      else printPull(io, pull);
    }
    if (pulls.length > 0) return "ok";
    io.err.write(`hearth ctl trace-pull: no pull of ${nameOf(String(block))} is known here\n`);
    return "partly";
  },
});

/** Formats the outcome of a command from its receipt: `the block was warmed: done`. */
function outcomeOf(receipt: Json): string {
  const [block] = listOf(receipt, "blocks");
  const { outcome, reason } = membersOf(block ?? receipt);
  const why = typeof reason === "string" ? `, ${textOf(reason)}` : "";
  const here = outcome === "already" ? " (the block is resident: no pull was needed)" : "";
  return `the block was warmed: ${textOf(outcome)}${why}${here}`;
}

function printPull(io: Io, pull: Members): void {
  const { key, layer, priority, started, outcome, bytes } = pull;
  const all = layer === 4_294_967_295 ? "" : `/${textOf(layer)}`;
  const head = [textOf(started), `${nameOf(key)}${all}`, `for ${textOf(priority)}`];
  const end = outcome === null ? "under way" : `${textOf(outcome)}, ${bytesOf(bytes)}`;
  io.out.write(`${head.join("  ")}: ${end}\n`);
  printRows(
    io,
    listOf(pull, "steps").map((step) => ({
      ms: typeof step.ms === "number" ? step.ms.toFixed(2).padStart(9) : "-",
      peer: textOf(step.peer),
      transport: textOf(step.transport),
      bytes: bytesOf(step.bytes),
      what: textOf(step.what),
    })),
    false,
  );
}
