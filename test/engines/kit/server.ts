import { join } from "node:path";
import { waitFor } from "../../support/index.ts";
import type { Answer, Question } from "./client.ts";
import type { Installed } from "./install.ts";
import { type Metrics, readMetrics } from "./metrics.ts";
import type { Model } from "./model.ts";
import { Program } from "./programs.ts";
import { say } from "./say.ts";

/** A hang detector: a start takes 40 to 130 s on two busy cores. */
const READY_MS = 600_000;

export interface ServerOptions {
  readonly name: string;
  readonly engine: Installed;
  readonly model: Model;
  /** A folder for logs. */
  readonly folder: string;
}

export interface ServerPlan {
  readonly command: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly port: number;
}

/** A port that was free a moment ago. */
export function freePort(): number {
  const server = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data: () => undefined } });
  const { port } = server;
  server.stop(true);
  return port;
}

/** The HTTP server of a real engine. */
export abstract class Server implements AsyncDisposable {
  readonly url: string;
  readonly name: string;
  readonly #folder: string;
  readonly #plan: ServerPlan;
  #program: Program;

  constructor({ name, folder }: ServerOptions, plan: ServerPlan) {
    this.name = name;
    this.url = `http://127.0.0.1:${plan.port}`;
    this.#folder = folder;
    this.#plan = plan;
    say(`starting ${name}`);
    this.#program = this.#spawn();
  }

  #spawn(): Program {
    const { command, env } = this.#plan;
    const logPath = join(this.#folder, `${this.name}.log`);
    return new Program({ command, env, cwd: this.#folder, logPath });
  }

  abstract ask(question: Question): Promise<Answer>;

  /** Waits until the server answers, and sends the request that compiles the sampler. */
  async ready(): Promise<void> {
    await waitFor(() => this.#answers(), READY_MS, `${this.name} being ready`);
    if (!this.#program.isRunning) {
      throw new Error(`${this.name} ended at its start:\n${this.#program.logTail(40)}`);
    }
    await this.ask({ prompt: [7, 8, 9], tokens: 2, timeoutMs: READY_MS });
    say(`${this.name} is ready`);
  }

  /** True once the server answers or has ended. */
  async #answers(): Promise<boolean> {
    if (!this.#program.isRunning) return true;
    await Bun.sleep(200);
    const answer = await fetch(`${this.url}/health`, { keepalive: false }).catch(() => null);
    return answer?.ok === true;
  }

  get isRunning(): boolean {
    return this.#program.isRunning;
  }

  log(): string {
    return this.#program.log();
  }

  metrics(): Promise<Metrics> {
    return readMetrics(`${this.url}/metrics`);
  }

  async post(path: string): Promise<boolean> {
    const answer = await fetch(`${this.url}${path}`, { method: "POST", keepalive: false });
    await answer.text();
    return answer.ok;
  }

  /** Ends the server and starts it again on the same port. */
  async restart(how: "stop" | "kill" = "stop"): Promise<void> {
    await this.#program[how]();
    say(`restarting ${this.name}`);
    this.#program = this.#spawn();
    await this.ready();
  }

  /** Of the server's own process; its children are in its group. */
  get pid(): number {
    return this.#program.pid;
  }

  /** Sends a signal to the server and all its processes. */
  signal(name: NodeJS.Signals): boolean {
    return this.#program.signal(name);
  }

  async kill(): Promise<void> {
    await this.#program.kill();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#program.stop();
  }
}

/** Waits for a server that was just made; ends it if it does not start. */
export async function started<S extends Server>(server: S): Promise<S> {
  try {
    await server.ready();
    return server;
  } catch (error) {
    await server[Symbol.asyncDispose]();
    throw error;
  }
}
