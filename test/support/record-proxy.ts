import { connect, createServer, type Socket } from "node:net";

const HEADER_BYTES = 24;
const TAG_BYTES = 16;

/** One record on its way to who dialled. Number 0 of a lane is the welcome. */
export interface PassingRecord {
  readonly lane: number;
  readonly number: number;
  /** Header, payload and, where it is sealed, tag. */
  readonly bytes: Uint8Array;
}

/** The records sent in place of a record; `cut` ends the connection. */
export type Meddler = (record: PassingRecord) => readonly Uint8Array[] | "cut";

/** Lets everything pass. */
export const honest: Meddler = ({ bytes }) => [bytes];

/**
 * Stands between two sides of lanes and does what it likes with the records from who listens to who
 * dialled. The other direction passes untouched. `sealed`: whether data has tags.
 */
export class RecordProxy implements AsyncDisposable {
  /** Records that came by, lane by lane. */
  readonly seen: PassingRecord[] = [];
  readonly #meddler: Meddler;
  readonly #sealed: boolean;
  readonly #target: number;
  readonly #server = createServer((socket) => this.#carry(socket));
  readonly #sockets = new Set<Socket>();
  #lanes = 0;

  constructor(target: number, sealed: boolean, meddler: Meddler) {
    this.#target = target;
    this.#sealed = sealed;
    this.#meddler = meddler;
  }

  /** The port to dial instead. */
  listen(): Promise<number> {
    return new Promise((resolve) => {
      this.#server.listen(0, "127.0.0.1", () => {
        const address = this.#server.address();
        if (address === null || typeof address === "string") throw new Error("no port");
        resolve(address.port);
      });
    });
  }

  #carry(dialler: Socket): void {
    const lane = this.#lanes++;
    const listener = connect(this.#target, "127.0.0.1");
    let rest: Uint8Array = new Uint8Array(0);
    let number = 0;
    for (const socket of [dialler, listener]) {
      this.#sockets.add(socket);
      // The other side's end is all that is to be known of it.
      socket.on("error", () => {});
    }
    dialler.on("data", (bytes) => listener.write(bytes));
    dialler.on("close", () => listener.destroy());
    listener.on("close", () => dialler.end());
    listener.on("data", (bytes) => {
      rest = Buffer.concat([rest, bytes as Uint8Array]);
      for (;;) {
        const record = this.#firstOf(rest, number === 0);
        if (record === null) return;
        rest = rest.subarray(record.length);
        const passing = { lane, number: number++, bytes: Uint8Array.from(record) };
        this.seen.push(passing);
        const instead = this.#meddler(passing);
        if (instead === "cut") {
          dialler.end();
          listener.destroy();
          return;
        }
        for (const piece of instead) dialler.write(piece);
      }
    });
  }

  #firstOf(bytes: Uint8Array, isWelcome: boolean): Uint8Array | null {
    if (bytes.length < HEADER_BYTES) return null;
    const payload = new DataView(bytes.buffer, bytes.byteOffset).getUint32(4, true);
    const tag = this.#sealed || isWelcome ? TAG_BYTES : 0;
    const length = HEADER_BYTES + payload + tag;
    return bytes.length < length ? null : bytes.subarray(0, length);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
