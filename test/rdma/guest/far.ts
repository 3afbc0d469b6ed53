import { waitFor } from "../../support/index.ts";
import type { Orders } from "./far-peer.ts";
import { FAR, ORDERS_PORT } from "./places.ts";

type Order<Name extends keyof Orders> = Parameters<Orders[Name]>[0];
type Answer<Name extends keyof Orders> = Awaited<ReturnType<Orders[Name]>>;
type Socket = Awaited<ReturnType<typeof Bun.connect<undefined>>>;

/** `why`: it could not be done. */
interface Said {
  readonly answer?: unknown;
  readonly why?: string;
}

/** An order in an emulated guest takes its time. */
const ORDER_MS = 40_000;

/** The far guest's process, at the other end of a connection. */
export class Far implements AsyncDisposable {
  readonly #waiting = new Map<number, (said: Said) => void>();
  #socket: Socket | null = null;
  #rest = "";
  #ids = 0;

  /** Waits until it is there: it begins anew whenever it has died. */
  async connect(): Promise<this> {
    let socket: Socket | null = null;
    const tries = async () => {
      socket = await Bun.connect<undefined>({
        hostname: FAR.net,
        port: ORDERS_PORT,
        socket: {
          data: (_, bytes) => this.#data(bytes.toString()),
          close: () => this.#gone(),
        },
      }).catch(() => null);
    };
    const startMs = performance.now();
    while (socket === null) {
      if (performance.now() - startMs > ORDER_MS) throw new Error("the far guest is not there");
      await tries();
      if (socket === null) await Bun.sleep(100);
    }
    this.#socket = socket;
    return this;
  }

  async order<Name extends keyof Orders>(
    name: Name,
    ...order: Order<Name> extends undefined ? [] : [Order<Name>]
  ): Promise<Answer<Name>> {
    const id = ++this.#ids;
    const socket = this.#socket;
    if (socket === null) throw new Error(`${name}: nobody is there`);
    const answered = new Promise<Said>((resolve) => {
      this.#waiting.set(id, resolve);
    });
    socket.write(`${JSON.stringify({ id, name, order: order[0] })}\n`);
    const late = Bun.sleep(ORDER_MS).then((): Said => ({ why: "no answer" }));
    const { answer, why } = await Promise.race([answered, late]);
    if (why !== undefined) throw new Error(`far ${name}: ${why}`);
    return answer as Answer<Name>;
  }

  /** Kills it and waits until it is no more. */
  async kill(): Promise<void> {
    this.order("die").catch(() => undefined);
    await waitFor(() => this.#socket === null, ORDER_MS);
  }

  #data(text: string): void {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop()!;
    for (const line of lines) {
      const { id, ...answer } = JSON.parse(line);
      this.#waiting.get(id)?.(answer);
      this.#waiting.delete(id);
    }
  }

  #gone(): void {
    this.#socket = null;
    this.#rest = "";
    for (const resolve of this.#waiting.values()) resolve({ why: "it is gone" });
    this.#waiting.clear();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#socket?.end();
    await waitFor(() => this.#socket === null, ORDER_MS);
  }
}
