import { encodeCommand } from "./frames.ts";

export const SOCKET_TYPES = [
  "PUB",
  "XPUB",
  "SUB",
  "XSUB",
  "DEALER",
  "ROUTER",
  "REQ",
  "REP",
] as const;
export type SocketType = (typeof SOCKET_TYPES)[number];

/** Which types may be at the other end. */
export const PARTNERS: Readonly<Record<"PUB" | "SUB" | "DEALER" | "ROUTER", readonly string[]>> = {
  PUB: ["SUB", "XSUB"],
  SUB: ["PUB", "XPUB"],
  DEALER: ["ROUTER", "DEALER", "REP"],
  ROUTER: ["DEALER", "ROUTER", "REQ"],
};

/** A command that a peer sent. `data`: a view. */
export type ZmtpCommand =
  | { readonly kind: "ready"; readonly socketType: string }
  | { readonly kind: "error"; readonly reason: string }
  | { readonly kind: "ping"; readonly context: Uint8Array }
  | { readonly kind: "pong" }
  | { readonly kind: "subscribe" | "cancel"; readonly topic: Uint8Array }
  /** None that is known: it is passed over. */
  | { readonly kind: "other" }
  | { readonly kind: "malformed"; readonly why: string };

const PROPERTIES_MAX = 64;
/** The longest context of a PING that must be answered. */
const CONTEXT_BYTES_MAX = 16;

export function encodeReady(type: keyof typeof PARTNERS): Uint8Array {
  const properties = [property("Socket-Type", type)];
  if (type === "DEALER" || type === "ROUTER") properties.push(property("Identity", ""));
  return encodeCommand("READY", Buffer.concat(properties));
}

export function encodeError(reason: string): Uint8Array {
  const bytes = Buffer.from(reason.slice(0, 200), "latin1");
  return encodeCommand("ERROR", Buffer.concat([Uint8Array.of(bytes.length), bytes]));
}

/** Asks for a sign of life. No time to live: the peer need not give up on us for our silence. */
export function encodePing(): Uint8Array {
  return encodeCommand("PING", new Uint8Array(2));
}

export function encodePong(context: Uint8Array): Uint8Array {
  return encodeCommand("PONG", context);
}

function property(name: string, value: string): Uint8Array {
  const bytes = Buffer.alloc(1 + name.length + 4 + value.length);
  bytes[0] = name.length;
  bytes.write(name, 1, "latin1");
  bytes.writeUInt32BE(value.length, 1 + name.length);
  bytes.write(value, 5 + name.length, "latin1");
  return bytes;
}

/** Reads the body of a command's frame. */
export function decodeCommand(body: Uint8Array): ZmtpCommand {
  const length = body[0] ?? 0;
  if (length === 0 || 1 + length > body.length) return malformed("a command without a name");
  const name = Buffer.from(body.subarray(1, 1 + length)).toString("latin1");
  const data = body.subarray(1 + length);
  switch (name) {
    case "READY":
      return decodeReady(data);
    case "ERROR":
      return { kind: "error", reason: reasonOf(data) };
    case "PING": {
      const context = data.subarray(2);
      const isPing = data.length >= 2 && context.length <= CONTEXT_BYTES_MAX;
      return isPing ? { kind: "ping", context } : malformed("a PING that is none");
    }
    case "PONG":
      return { kind: "pong" };
    case "SUBSCRIBE":
      return { kind: "subscribe", topic: data };
    case "CANCEL":
      return { kind: "cancel", topic: data };
    default:
      return { kind: "other" };
  }
}

function decodeReady(data: Uint8Array): ZmtpCommand {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let [at, socketType] = [0, null as string | null];
  for (let count = 0; at < data.length; count++) {
    const nameEnd = at + 1 + data[at]!;
    if (count === PROPERTIES_MAX || nameEnd === at + 1 || nameEnd + 4 > data.length) {
      return malformed("a READY that is none");
    }
    const name = Buffer.from(data.subarray(at + 1, nameEnd)).toString("latin1");
    const end = nameEnd + 4 + view.getUint32(nameEnd);
    if (end > data.length) return malformed("a READY that is none");
    const value = data.subarray(nameEnd + 4, end);
    if (name.toLowerCase() === "socket-type") socketType = Buffer.from(value).toString("latin1");
    at = end;
  }
  if (socketType === null) return malformed("a READY without a socket type");
  return { kind: "ready", socketType };
}

/** For people, in a log: printable and short. */
function reasonOf(data: Uint8Array): string {
  const text = Buffer.from(data.subarray(1, 1 + (data[0] ?? 0))).toString("latin1");
  return text.replace(/[^\x20-\x7e]/g, "?");
}

function malformed(why: string): ZmtpCommand {
  return { kind: "malformed", why };
}
