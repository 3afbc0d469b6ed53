/** A message as the broker gave it. */
export interface RawMessage {
  readonly subject: string;
  readonly reply: string | null;
  readonly headers: Readonly<Record<string, string>>;
  readonly data: Uint8Array;
}

export interface RawPublish {
  readonly reply?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

const CRLF = "\r\n";

/**
 * Somebody who speaks to a broker as its protocol is written down, over TCP, with none of our code
 * between: what it sends is byte for byte what it was given.
 */
export class RawNats implements Disposable {
  readonly #takers = new Map<string, (message: RawMessage) => void>();
  #write: (bytes: Uint8Array) => void = () => undefined;
  #end: () => void = () => undefined;
  #rest = Buffer.alloc(0);
  #lastSid = 0;
  #pongs: (() => void)[] = [];
  /** What the broker complained of. */
  readonly complaints: string[] = [];

  static async connect(port: number): Promise<RawNats> {
    const nats = new RawNats();
    const socket = await Bun.connect({
      hostname: "127.0.0.1",
      port,
      socket: { data: (_, bytes) => nats.#take(bytes) },
    });
    nats.#write = (bytes) => {
      if (socket.write(bytes) < bytes.length) throw new Error("the broker does not read");
    };
    nats.#end = () => socket.end();
    const options = { verbose: false, pedantic: false, headers: true, no_responders: true };
    nats.#line(`CONNECT ${JSON.stringify({ ...options, lang: "raw", version: "1" })}`);
    await nats.flush();
    return nats;
  }

  subscribe(subject: string, take: (message: RawMessage) => void): Disposable {
    const sid = `${++this.#lastSid}`;
    this.#takers.set(sid, take);
    this.#line(`SUB ${subject} ${sid}`);
    return {
      [Symbol.dispose]: () => {
        this.#takers.delete(sid);
        this.#line(`UNSUB ${sid}`);
      },
    };
  }

  publish(subject: string, data: Uint8Array, { reply, headers }: RawPublish = {}): void {
    const to = reply === undefined ? subject : `${subject} ${reply}`;
    const head = headers === undefined ? "" : headerText(headers);
    const [verb, sizes] =
      headers === undefined
        ? ["PUB", `${data.length}`]
        : ["HPUB", `${head.length} ${head.length + data.length}`];
    const line = Buffer.from(`${verb} ${to} ${sizes}${CRLF}${head}`);
    this.#write(Buffer.concat([line, data, Buffer.from(CRLF)]));
  }

  /** Publishes with a reply subject; resolves with the first `wanted` answers that `counts`. */
  async request(
    subject: string,
    data: Uint8Array,
    options: {
      readonly headers?: Readonly<Record<string, string>>;
      readonly wanted?: number;
      readonly ms?: number;
      readonly counts?: (message: RawMessage) => boolean;
    } = {},
  ): Promise<RawMessage[]> {
    const { headers, wanted = 1, ms = 15_000, counts = () => true } = options;
    const reply = `_INBOX.raw.${this.#lastSid + 1}`;
    const answers: RawMessage[] = [];
    const all = Promise.withResolvers<void>();
    using _subscription = this.subscribe(reply, (message) => {
      if (!counts(message)) return;
      answers.push(message);
      if (answers.length === wanted || message.headers.Status === "503") all.resolve();
    });
    this.publish(subject, data, { reply, ...(headers === undefined ? {} : { headers }) });
    const late = setTimeout(() => all.resolve(), ms);
    await all.promise;
    clearTimeout(late);
    return answers;
  }

  /** Resolves when the broker has everything sent so far. */
  flush(): Promise<void> {
    const pong = Promise.withResolvers<void>();
    this.#pongs.push(pong.resolve);
    this.#line("PING");
    return pong.promise;
  }

  [Symbol.dispose](): void {
    this.#end();
  }

  #line(text: string): void {
    this.#write(Buffer.from(text + CRLF));
  }

  #take(bytes: Uint8Array): void {
    this.#rest = Buffer.concat([this.#rest, bytes]);
    for (;;) {
      const end = this.#rest.indexOf(CRLF);
      if (end < 0) return;
      const words = this.#rest.toString("utf8", 0, end).split(" ");
      const after = end + CRLF.length;
      const isMessage = words[0] === "MSG" || words[0] === "HMSG";
      const bytesOfBody = isMessage ? Number(words.at(-1)) + CRLF.length : 0;
      if (this.#rest.length < after + bytesOfBody) return;
      const body = Buffer.from(this.#rest.subarray(after, after + bytesOfBody - CRLF.length));
      this.#rest = this.#rest.subarray(after + bytesOfBody);
      if (isMessage) this.#message(words, body);
      else this.#control(words);
    }
  }

  #control(words: readonly string[]): void {
    if (words[0] === "PING") this.#line("PONG");
    else if (words[0] === "PONG") this.#pongs.shift()?.();
    else if (words[0] === "-ERR") this.complaints.push(words.slice(1).join(" "));
  }

  /** `MSG subject sid [reply] bytes`, `HMSG subject sid [reply] bytes-of-headers bytes`. */
  #message(words: readonly string[], body: Uint8Array): void {
    const hasHeaders = words[0] === "HMSG";
    const hasReply = words.length === (hasHeaders ? 6 : 5);
    const headerBytes = hasHeaders ? Number(words.at(-2)) : 0;
    this.#takers.get(words[2]!)?.({
      subject: words[1]!,
      reply: hasReply ? words[3]! : null,
      headers: headersIn(new TextDecoder().decode(body.subarray(0, headerBytes))),
      data: body.subarray(headerBytes),
    });
  }
}

function headerText(headers: Readonly<Record<string, string>>): string {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}${CRLF}`);
  return `NATS/1.0${CRLF}${lines.join("")}${CRLF}`;
}

function headersIn(text: string): Record<string, string> {
  const [first = "", ...lines] = text.split(CRLF);
  const headers: Record<string, string> = {};
  const status = /^NATS\/1\.0 (\d+)/.exec(first)?.[1];
  if (status !== undefined) headers.Status = status;
  for (const line of lines) {
    const at = line.indexOf(":");
    if (at > 0) headers[line.slice(0, at)] = line.slice(at + 1).trim();
  }
  return headers;
}
