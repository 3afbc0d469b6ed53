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
/** The ALPN protocol name. */
export const STREAM_PROTOCOL = "hearth-stream/1";

const SESSION_ID_BYTES = 16;
const SECRET_BYTES = 32;
const OFFERED_CIPHERS_MAX = 16;

/** The remaining bytes: one cipher each. Unknown ciphers of later versions are ignored. */
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

/** Messages of a stream control channel, besides the common ones; codes are never reused. */
const STREAM_MESSAGES = {
  /**
   * From the client, first: its accepted ciphers, best first, and the number of lanes that it
   * wants.
   */
  hello: { code: 1, fields: { version: positive(u16), lanes: positive(u8), ciphers } },
  /**
   * The server's answer: its maximum of concurrent requests, the lanes' session, and the port to
   * connect them to.
   */
  welcome: {
    code: 2,
    fields: { version: positive(u16), port: positive(u16), requests: positive(u16), session },
  },
  /**
   * A pull. Its first `announced` items are expected as transfers `transfer`, `transfer + 1`, and
   * so on.
   */
  pull: { code: 5, fields: { id: u32, transfer: u32, announced: u16, body: rest } },
  /**
   * The answer for one item. `sent`: the block's payload follows at once; otherwise it waits for
   * `go`.
   */
  part: { code: 6, fields: { id: u32, sent: flag, body: rest } },
  go: { code: 7, fields: { id: u32, index: u16, transfer: u32 } },
} as const;

export type StreamMessage = MessageOf<typeof STREAM_MESSAGES>;
export type ControlMessage = StreamMessage | CommonMessage;
export const STREAM_CODEC = makeCodec(STREAM_MESSAGES);
