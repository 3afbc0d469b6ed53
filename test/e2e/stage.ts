import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { decodeReceipt, JSON_TYPE, type Receipt } from "../../src/control/index.ts";
import { waitFor } from "../support/wait.ts";
import { Claims } from "./claims.ts";
import { Host, type HostOptions } from "./host.ts";
import type { RawMessage, RawNats } from "./raw-nats.ts";

/** A command as it was sent, and the receipt as it came. */
export interface Exchange {
  readonly subject: string;
  readonly command: string;
  readonly receipt: string;
}

export interface StageParts {
  readonly executable: string;
  readonly folder: string;
  readonly nats: RawNats;
  /** Where agents connect: over TCP or WebSocket. */
  readonly natsUrl: string;
  /** What the broker tells of itself, over HTTP. */
  readonly monitorUrl: string;
}

const WORKERS = ["gpu-01", "gpu-02"];
const LISTENS_MS = 15_000;

/** What one scenario plays on: agents of its own, a broker, and somebody who sends commands. */
export class Stage implements AsyncDisposable {
  readonly claims = new Claims();
  readonly exchanges: Exchange[] = [];
  readonly nats: RawNats;
  readonly natsUrl: string;
  readonly #parts: StageParts;
  readonly #hosts: Host[] = [];

  constructor(parts: StageParts) {
    this.#parts = parts;
    this.nats = parts.nats;
    this.natsUrl = parts.natsUrl;
  }

  /** One more agent, that takes commands when this resolves. */
  async host(more: Pick<HostOptions, "nats"> = {}): Promise<Host> {
    const worker = WORKERS[this.#hosts.length]!;
    const folder = join(this.#parts.folder, worker);
    mkdirSync(folder);
    const { executable, natsUrl } = this.#parts;
    const host = await Host.start({ executable, folder, worker, natsUrl, ...more });
    this.#hosts.push(host);
    await this.listens(worker);
    return host;
  }

  async restart(host: Host, by: "SIGTERM" | "SIGKILL"): Promise<void> {
    await host.restart(by);
    await this.listens(host.worker);
  }

  /** Discovery finds the worker. */
  async listens(worker: string): Promise<void> {
    const asks = async () => {
      const counts = ({ data }: RawMessage) =>
        Buffer.from(data).includes(`"worker_id":"${worker}"`);
      const options = { ms: 250, counts };
      return (await this.nats.request("$SRV.PING.hearth-agent", EMPTY, options)).length > 0;
    };
    await waitFor(asks, LISTENS_MS, `${worker} on the bus`);
  }

  /** Sends text as it is, and waits for the receipt. */
  async send(worker: string, command: string): Promise<Receipt> {
    const subject = `kv-control-${worker}`;
    const [answer] = await this.nats.request(subject, Buffer.from(command), { counts: isEnd });
    return this.#note(subject, command, answer);
  }

  /** The same on the subject of all. */
  async broadcast(command: string, wanted: number): Promise<Receipt[]> {
    const subject = "kv-control-broadcast";
    const options = { wanted, counts: isEnd };
    const answers = await this.nats.request(subject, Buffer.from(command), options);
    return answers.map((answer) => this.#note(subject, command, answer));
  }

  #note(subject: string, command: string, answer: RawMessage | undefined): Receipt {
    const text = Buffer.from(answer?.data ?? EMPTY).toString();
    this.exchanges.push({ subject, command, receipt: text });
    const receipt = answer === undefined ? null : decodeReceipt(answer.data, JSON_TYPE);
    if (receipt === null) throw new Error(`${command} was answered by ${text || "nobody"}`);
    return receipt;
  }

  /** All that comes on a subject from now on, as JSON. */
  async listen<T>(subject: string): Promise<T[]> {
    const heard: T[] = [];
    this.nats.subscribe(subject, ({ data }) =>
      heard.push(JSON.parse(Buffer.from(data).toString())),
    );
    await this.nats.flush();
    return heard;
  }

  /** How agents are connected, as the broker sees it: "nats" for TCP, or "websocket". */
  async connections(): Promise<string[]> {
    type Page = { connections: { name: string; type: string }[] };
    const page = await (await fetch(`${this.#parts.monitorUrl}/connz`)).json();
    const { connections } = page as Page;
    const ours = connections.filter(({ name }) => name?.startsWith("hearth "));
    return ours.map(({ type }) => type);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const host of this.#hosts) await host[Symbol.asyncDispose]();
  }
}

const EMPTY = new Uint8Array();

/** Not a report on the way. */
function isEnd({ data }: RawMessage): boolean {
  return !Buffer.from(data).includes('"status":"running"');
}

/** Outcomes of a receipt's blocks, with the stable word of a reason. */
export function outcomesOf({ blocks }: Receipt): string[] {
  return blocks.map(({ outcome, reason }) =>
    reason === undefined ? outcome : `${outcome} ${reason.slice(0, reason.indexOf(":"))}`,
  );
}
