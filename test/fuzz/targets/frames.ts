import { type Random, randomBelow } from "../../../src/core/index.ts";
import { RDMA_CODEC } from "../../../src/peers/transports/rdma/index.ts";
import { STREAM_CODEC } from "../../../src/peers/transports/stream/index.ts";
import {
  ANSWER_BYTES_MAX,
  decodePart,
  decodeRequest,
  KeyFilterBuilder,
  LENGTH_BYTES,
  MessageReader,
  OpenItems,
  readKeyFilter,
  WIRE_VERSION,
  withLength,
} from "../../../src/peers/wire/index.ts";
import { READERS } from "../../peers/wire/arbitrary.ts";
import { CASES, goldenBytes, goldenNames } from "../../peers/wire/golden-cases.ts";
import { must, type Saw, shapeOf, type Target } from "../target.ts";

const KEY = Uint8Array.from({ length: 32 }, (_, i) => i);

function cut(input: Uint8Array, stride: number): { messages: Uint8Array[]; fault: string | null } {
  const reader = new MessageReader(ANSWER_BYTES_MAX);
  const messages: Uint8Array[] = [];
  for (let from = 0; from < input.length; from += stride) {
    const chunk = input.slice(from, from + stride);
    for (let at = 0; at < chunk.length; ) {
      const next = reader.take(chunk, at);
      must(next > at || reader.message !== null, "a reader goes on");
      at = next;
      if (reader.message !== null) messages.push(reader.message.slice());
      if (reader.fault !== null) return { messages, fault: reader.fault };
    }
    chunk.fill(0xee);
  }
  return { messages, fault: null };
}

/** Read by one decoder at most; what was read of our version has one encoding. */
function decodeAll(bytes: Uint8Array, saw: Saw): void {
  let read = 0;
  for (const [name, decode] of Object.entries(READERS)) {
    const decoded = decode(bytes);
    if (!decoded.ok) {
      must(/^[ -~]{1,120}$/.test(decoded.why), "refusals are one short line");
      saw(`${name} ${shapeOf(decoded.why)}`);
      continue;
    }
    read++;
    saw(`${name} ${bytes[0]} ${bytes[2]} read`);
    if (bytes[0] !== WIRE_VERSION) continue;
    const again = decoded.encode();
    must(Buffer.compare(again, bytes) === 0, "a message encodes to what it was");
  }
  must(read <= 1, "a message is one thing");
}

/** The first message as a pull, the others as its answers. */
function converse(messages: readonly Uint8Array[], saw: Saw): void {
  const asked = messages[0] === undefined ? null : decodeRequest(messages[0]);
  if (asked === null || !asked.ok || asked.request.op !== "pull") return;
  const { namespace, items } = asked.request;
  const open = new OpenItems(namespace, items);
  for (const message of messages.slice(1)) {
    const decoded = decodePart(message);
    if (!decoded.ok) return;
    const { part } = decoded;
    const [before, was] = [open.size, open.has(part.index)];
    const why = open.take(part);
    must(open.size === before - (why === null ? 1 : 0), "an answer closes one item");
    saw(`part ${why ?? part.kind}`);
    if (why !== null) return;
    must(was && !open.has(part.index), "and an item is answered once");
    if (part.kind === "frame") must(part.header.bytes <= items[part.index]!.bytesMax, "no longer");
  }
}

/** What stands around messages of the stream transport. */
function readControl(bytes: Uint8Array, saw: Saw): void {
  const said = STREAM_CODEC.decode(bytes);
  saw(`control ${said?.kind ?? null}`);
  if (said === null) return;
  const again = STREAM_CODEC.encode(said).subarray(LENGTH_BYTES);
  // Ciphers that are not known here are left out, and a byte order mark of a text.
  if (["hello", "end", "bye"].includes(said.kind)) return;
  must(Buffer.compare(again, bytes) === 0, "a control message encodes to what it was");
}

/** The same for the RDMA transport, all of whose messages have one encoding but for texts. */
function readRdmaControl(bytes: Uint8Array, saw: Saw): void {
  const said = RDMA_CODEC.decode(bytes);
  saw(`rdma control ${said?.kind ?? null}`);
  if (said === null || ["end", "bye"].includes(said.kind)) return;
  const again = RDMA_CODEC.encode(said).subarray(LENGTH_BYTES);
  must(Buffer.compare(again, bytes) === 0, "a control message of RDMA encodes to what it was");
}

function readFilter(input: Uint8Array, saw: Saw): void {
  const read = readKeyFilter(input);
  saw(`filter ${read.ok ? "read" : shapeOf(read.why)}`);
  if (read.ok) saw(`filter ${read.filter.mayContain(KEY)}`);
}

function run(input: Uint8Array, saw: Saw): void {
  const whole = cut(input, Math.max(1, input.length));
  const pieces = cut(input, 1 + (input.length % 67));
  must(whole.fault === pieces.fault, "pieces end for the same reason");
  must(whole.messages.length === pieces.messages.length, "pieces give as many messages");
  for (const [i, message] of whole.messages.entries()) {
    must(Buffer.compare(message, pieces.messages[i]!) === 0, "and the same");
    decodeAll(message, saw);
    readControl(message, saw);
    readRdmaControl(message, saw);
  }
  if (whole.fault !== null) saw(shapeOf(whole.fault));
  converse(whole.messages, saw);
  decodeAll(input, saw);
  readFilter(input, saw);
}

function joined(messages: readonly Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(messages.map((message) => withLength(message))));
}

/** A message of the stream or RDMA transport: its kind right, its fields mostly zeros. */
function control(random: Random): Uint8Array {
  const bytes = new Uint8Array(1 + randomBelow(random, 70));
  bytes[0] = 1 + randomBelow(random, 18);
  for (let i = randomBelow(random, 8); i > 0; i--) {
    bytes[randomBelow(random, bytes.length)] = randomBelow(random, 8);
  }
  return bytes;
}

/** Good messages behind each other, of this version or a neighbour's, some with a changed byte. */
function generate(random: Random): Uint8Array {
  if (randomBelow(random, 4) === 0) return joined([control(random)]);
  const messages = Array.from({ length: 1 + randomBelow(random, 4) }, () => {
    const bytes = CASES[randomBelow(random, CASES.length)]!.bytes.slice();
    if (randomBelow(random, 4) === 0) bytes[0] = randomBelow(random, 5);
    if (randomBelow(random, 3) === 0)
      bytes[randomBelow(random, bytes.length)] = random.u32() & 0xff;
    return bytes;
  });
  return joined(messages);
}

function filterBytes(): Uint8Array {
  const builder = new KeyFilterBuilder(1);
  builder.add(KEY);
  return builder.done().bytes;
}

/** Everything that peers say, message by message; and filters. */
export function peerFrames(): Target {
  const goldens = goldenNames().map(goldenBytes);
  const pull = goldenBytes("pull.request");
  const parts = goldenNames().filter((name) => name.endsWith(".part"));
  const pulls = parts.map((name) => joined([pull, goldenBytes(name)]));
  return {
    name: "frames",
    corpus: [...goldens, ...goldens.map((bytes) => joined([bytes])), ...pulls, filterBytes()],
    generate,
    run,
  };
}
