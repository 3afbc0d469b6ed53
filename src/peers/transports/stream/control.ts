import { CIPHERS, type Cipher } from "../../../native/index.ts";
import {
  bytes,
  type Field,
  flag,
  oneOf,
  positive,
  rest,
  struct,
  u8,
  u16,
  u32,
} from "../../wire/index.ts";
import { type CommonMessage, type MessageOf, makeCodec } from "../control-channel/index.ts";

export const CONTROL_VERSION = 1;
/** ALPN protocol name in the TLS handshake. */
export const STREAM_PROTOCOL = "hearth-stream/1";

const SESSION_ID_BYTES = 16;
const SECRET_BYTES = 32;
const OFFERED_CIPHERS_MAX = 16;

/**
 * List of ciphers, one byte each, up to the end of the message. Ciphers that only later versions
 * know are ignored.
 */
const ciphers: Field<readonly Cipher[]> = {
  write: (writer, offered) =>
    void writer.raw(Uint8Array.from(offered, (cipher) => CIPHERS.indexOf(cipher))),
  read(reader) {
    const codes = reader.rest();
    if (codes.length === 0 || codes.length > OFFERED_CIPHERS_MAX) reader.fail("number of ciphers");
    return [...new Set(codes)].flatMap((code) => CIPHERS[code] ?? []);
  },
};

const session = struct({
  cipher: oneOf(CIPHERS),
  lanes: positive(u8),
  id: bytes(SESSION_ID_BYTES),
  secret: bytes(SECRET_BYTES),
});

/** Messages that only the stream transport defines. Codes are never reused. */
const STREAM_MESSAGES = {
  /**
   * First message, from the client: the ciphers that it accepts, best first, and the number of data
   * connections ("lanes") that it wants.
   */
  hello: { code: 1, fields: { version: positive(u16), lanes: positive(u8), ciphers } },
  /**
   * The server's reply to the hello: the maximum number of concurrent requests, the session of the
   * lanes, and the port to which the client connects them.
   */
  welcome: {
    code: 2,
    fields: { version: positive(u16), port: positive(u16), requests: positive(u16), session },
  },
  /**
   * Pull request. The client has announced memory for its first `announced` items, with the
   * transfer numbers `transfer`, `transfer + 1`, and so on.
   */
  pull: { code: 5, fields: { id: u32, transfer: u32, announced: u16, body: rest } },
  /**
   * From the server: header or refusal of one block. `sent`: the server sends the payload at once;
   * otherwise it waits for the client's `go`.
   */
  part: { code: 6, fields: { id: u32, sent: flag, body: rest } },
  go: { code: 7, fields: { id: u32, index: u16, transfer: u32 } },
} as const;

export type StreamMessage = MessageOf<typeof STREAM_MESSAGES>;
export type ControlMessage = StreamMessage | CommonMessage;
export const STREAM_CODEC = makeCodec(STREAM_MESSAGES);
