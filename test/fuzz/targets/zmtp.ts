import { encodeMessage, Peer, ZMTP_LIMITS } from "../../../src/events/zmtp/index.ts";
import { greeting, ready } from "../../events/zmtp/support.ts";
import { endlessTurns, ManualClock } from "../../support/index.ts";
import { must, type Saw, shapeOf, type Target } from "../target.ts";

const TYPES = ["PUB", "SUB", "DEALER", "ROUTER"] as const;
const LIMITS = {
  ...ZMTP_LIMITS,
  frameBytesMax: 2_000,
  messageBytesMax: 3_000,
  framesMax: 6,
  queueBytesMax: 4_000,
};

/** Everything that a connection says and tells, in order. */
function converse(type: (typeof TYPES)[number], stream: Uint8Array, stride: number): string[] {
  const told: string[] = [];
  let isClosed = false;
  let written = 0;
  const tell = (what: string) => {
    must(!isClosed, "nothing is told of a connection that has ended");
    told.push(what);
  };
  const peer = new Peer({
    type,
    limits: LIMITS,
    clock: new ManualClock(),
    wire: {
      write: (bytes) => {
        written += bytes.length;
        must(written <= 100_000 + stream.length * 4, "an answer is not much more than a question");
        return bytes.length;
      },
      pause: () => undefined,
      resume: () => undefined,
      end: () => undefined,
      terminate: () => undefined,
    },
    turns: endlessTurns,
    events: {
      onReady: () => tell("ready"),
      onMessage: (_peer, frames) => {
        const bytes = frames.reduce((sum, frame) => sum + frame.length, 0);
        must(frames.length <= LIMITS.framesMax, "a message has no more frames than it may");
        must(bytes <= LIMITS.messageBytesMax, "a message is no longer than it may be");
        tell(`message ${frames.map((frame) => Buffer.from(frame).toString("hex")).join(" ")}`);
      },
      onTopic: (_peer, topic, isWanted) => tell(`topic ${topic.length} ${isWanted}`),
      onClosed: (_peer, why, isRefused) => {
        tell(`closed ${isRefused} ${why}`);
        isClosed = true;
      },
    },
  });
  for (let at = 0; at < stream.length; at += stride) {
    const chunk = stream.slice(at, at + stride);
    peer.receive(chunk);
    chunk.fill(0xee);
  }
  if (!isClosed) peer.close("done");
  return told;
}

function kindOf(told: string): string {
  const [first, ...others] = told.split(" ");
  if (first === "message") return `message ${others.length}`;
  // What a peer said in its own words is behind a colon.
  return shapeOf(told.split(":")[0]!.replace(/ a [A-Z?]+ cannot/, " cannot"));
}

/** What a peer sends: the first byte says what it is talking to, and whether it greets well. */
export function zmtpStreams(): Target {
  const run = (input: Uint8Array, saw: Saw) => {
    const [choice = 0, ...rest] = input;
    const type = TYPES[choice & 3]!;
    const partner = { PUB: "SUB", SUB: "PUB", DEALER: "ROUTER", ROUTER: "DEALER" }[type];
    const before = [
      ...((choice & 4) !== 0 ? greeting(choice & 1) : []),
      ...((choice & 8) !== 0 ? ready(partner) : []),
    ];
    const stream = Uint8Array.from([...before, ...rest]);
    const told = converse(type, stream, stream.length + 1);
    must(Bun.deepEquals(converse(type, stream, 7), told), "where it is cut changes nothing");
    for (const what of told) saw(`${type} ${kindOf(what)}`);
  };
  const commands = [
    "0b0950494e470000",
    "040704504f4e47",
    "040a0953554253435249424561",
    "04080643414e43454c61",
    "04090545 52524f5202 6e6f",
  ].map((hex) => Uint8Array.fromHex(hex.replaceAll(" ", "")));
  const messages = [
    encodeMessage([Uint8Array.of(1, 97)]),
    encodeMessage([new Uint8Array(), new Uint8Array(8), new Uint8Array(300)]),
    encodeMessage(Array.from({ length: 8 }, () => Uint8Array.of(1))),
  ];
  const tails = [...commands, ...messages, ready("SUB"), Uint8Array.of(2, 255, 255)];
  const corpus = [0, 4, 12, 13, 14, 15].flatMap((choice) => [
    Buffer.concat([Uint8Array.of(choice), greeting(1), ready("SUB"), ...messages]),
    ...tails.map((tail) => Buffer.concat([Uint8Array.of(choice), tail])),
  ]);
  return {
    name: "zmtp",
    corpus: corpus.map((one) => new Uint8Array(one)),
    inputBytesMax: 6_000,
    run,
  };
}
