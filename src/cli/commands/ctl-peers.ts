import type { Json } from "../../core/index.ts";
import { defineCommand } from "../command.ts";
import {
  Asking,
  bytesOf,
  listOf,
  type Members,
  membersOf,
  READ_EXITS,
  readFlags,
  secondsOf,
  textOf,
} from "../ctl/index.ts";
import type { Io } from "../io.ts";
import { printJson, printRows } from "../output.ts";

export const command = defineCommand({
  description: [
    "Lists the hosts that an agent pulls blocks from: how it stands with each, over which " +
      "transport, at how many bytes a second, and how long their certificates are good.",
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
    io.out.write("this agent pulls from nobody: peers.cert_file is not set\n");
    return;
  }
  printRows(
    io,
    listOf(document, "peers").map((peer) => rowOf(peer, nowMs)),
    false,
  );
  const places = Object.entries(membersOf(listening)).map(
    ([name, place]) => `${textOf(name)} ${placeOf(membersOf(place))}`,
  );
  const own = [`cluster ${textOf(cluster)}`, ...places, `certificate ${leftOf(ends, nowMs)}`];
  io.out.write(`this host: ${own.join(", ")}\n`);
}

function rowOf(peer: Members, nowMs: number) {
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

/** `29.5d`; of what is over `over`. */
function leftOf(time: unknown, nowMs: number): string {
  const ms = typeof time === "string" ? Date.parse(time) - nowMs : Number.NaN;
  if (Number.isNaN(ms)) return "-";
  return ms <= 0 ? "over" : secondsOf(ms / 1_000);
}

function placeOf({ host, port }: Members): string {
  const name = textOf(host);
  return `${name.includes(":") ? `[${name}]` : name}:${textOf(port)}`;
}
