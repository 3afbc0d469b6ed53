import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findNatsServer } from "./nats-server.ts";

const START_MS = 10_000;
const STOP_MS = 5_000;

export interface NatsTls {
  readonly certFile: string;
  readonly keyFile: string;
  readonly caFile: string;
  /** Whether clients must show a certificate of that CA. */
  readonly verify?: boolean;
}

export interface NatsServerOptions {
  readonly jetStream?: boolean;
  /** As the server's own config has it: "8MB". */
  readonly maxPayload?: string;
  readonly token?: string;
  readonly user?: string;
  readonly password?: string;
  /** The public key of the one user that may come in. */
  readonly nkey?: string;
  readonly tls?: NatsTls;
  /** More lines for the server's config file; the server wants blanks around braces. */
  readonly lines?: readonly string[];
}

interface Ports {
  readonly tcp: number;
  readonly ws: number;
  readonly monitor: number;
}

/**
 * A nats-server of its own in a folder of its own, on ports that the system chose. The ports stay
 * the same over `restart`.
 */
export class NatsServer {
  readonly #options: NatsServerOptions;
  readonly #folder = mkdtempSync(join(tmpdir(), "hearth-nats-"));
  #child: Bun.Subprocess | null = null;
  #ports: Ports = { tcp: -1, ws: -1, monitor: -1 };

  private constructor(options: NatsServerOptions) {
    this.#options = options;
  }

  /** Resolves once the server accepts connections. Throws with its log when it does not. */
  static async start(options: NatsServerOptions = {}): Promise<NatsServer> {
    const server = new NatsServer(options);
    await server.#start();
    return server;
  }

  get tcpPort(): number {
    return this.#ports.tcp;
  }
  get wsPort(): number {
    return this.#ports.ws;
  }
  /** `nats://` or, with TLS, `tls://`. */
  get tcpUrl(): string {
    return `${this.#options.tls === undefined ? "nats" : "tls"}://127.0.0.1:${this.#ports.tcp}`;
  }
  get wsUrl(): string {
    return `${this.#options.tls === undefined ? "ws" : "wss"}://127.0.0.1:${this.#ports.ws}`;
  }
  get monitorUrl(): string {
    return `http://127.0.0.1:${this.#ports.monitor}`;
  }
  get pid(): number {
    return this.#child?.pid ?? 0;
  }

  /** What it logged so far, over all its starts. */
  log(): string {
    try {
      return readFileSync(join(this.#folder, "log"), "utf8");
    } catch {
      return "";
    }
  }

  /** Ends the process and waits until it is gone. */
  async kill(signal: "SIGKILL" | "SIGTERM" = "SIGKILL"): Promise<void> {
    const child = this.#child;
    if (child === null) return;
    this.#child = null;
    child.kill(signal);
    const stubborn = setTimeout(() => child.kill("SIGKILL"), STOP_MS);
    await child.exited;
    clearTimeout(stubborn);
  }

  /** Starts it again, on the same ports and with what JetStream had stored. */
  async restart(): Promise<void> {
    await this.kill();
    await this.#start();
  }

  /** Resolves when the process stands still: connections stay open, nothing is answered. */
  async pause(): Promise<void> {
    this.#child?.kill("SIGSTOP");
    const state = () => / ([A-Za-z]) /.exec(readFileSync(`/proc/${this.pid}/stat`, "utf8"))![1];
    while (state() !== "T") await Bun.sleep(1);
  }
  resume(): void {
    this.#child?.kill("SIGCONT");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async #start(): Promise<void> {
    const verdict = findNatsServer();
    if (verdict.kind === "skipped") throw new Error(verdict.why);
    const portsDir = join(this.#folder, "ports");
    mkdirSync(portsDir, { recursive: true });
    const config = join(this.#folder, "server.conf");
    writeFileSync(config, this.#config(portsDir));
    const child = Bun.spawn([verdict.path, "-c", config], {
      cwd: this.#folder,
      stdin: "ignore",
      stdout: "ignore",
      stderr: "ignore",
    });
    this.#child = child;
    // A killed server leaves its file behind: only the one with this child's own pid counts.
    const file = join(portsDir, `nats-server_${child.pid}.ports`);
    const deadline = performance.now() + START_MS;
    for (;;) {
      const ports = readPorts(file);
      if (ports !== null && (await accepts(ports.tcp))) {
        this.#ports = ports;
        return;
      }
      if (child.exitCode !== null || performance.now() > deadline) {
        await this.kill();
        throw new Error(`nats-server did not start:\n${this.log()}`);
      }
      await Bun.sleep(5);
    }
  }

  #config(portsDir: string): string {
    const { jetStream, maxPayload, token, user, password, nkey, tls, lines } = this.#options;
    const { tcp, ws, monitor } = this.#ports;
    const tlsBlock = tls === undefined ? [] : tlsLines(tls);
    const text = [
      "host: 127.0.0.1",
      `port: ${tcp}`,
      `http: "127.0.0.1:${monitor}"`,
      `ports_file_dir: ${JSON.stringify(portsDir)}`,
      `log_file: ${JSON.stringify(join(this.#folder, "log"))}`,
      ...tlsBlock,
      "websocket {",
      "  host: 127.0.0.1",
      `  port: ${ws}`,
      ...(tls === undefined ? ["  no_tls: true"] : tlsBlock),
      "}",
    ];
    if (maxPayload !== undefined) text.push(`max_payload: ${maxPayload}`);
    if (jetStream) {
      text.push(`jetstream {\n  store_dir: ${JSON.stringify(join(this.#folder, "js"))}\n}`);
    }
    if (token !== undefined) text.push(`authorization {\n  token: ${JSON.stringify(token)}\n}`);
    if (user !== undefined) {
      const pair = `user: ${JSON.stringify(user)}\n  password: ${JSON.stringify(password ?? "")}`;
      text.push(`authorization {\n  ${pair}\n}`);
    }
    if (nkey !== undefined) text.push(`authorization {\n  users: [ { nkey: ${nkey} } ]\n}`);
    return `${[...text, ...(lines ?? [])].join("\n")}\n`;
  }
}

function tlsLines({ certFile, keyFile, caFile, verify }: NatsTls): string[] {
  return [
    "tls {",
    `  cert_file: ${JSON.stringify(certFile)}`,
    `  key_file: ${JSON.stringify(keyFile)}`,
    `  ca_file: ${JSON.stringify(caFile)}`,
    `  verify: ${verify === true}`,
    "  timeout: 5",
    "}",
  ];
}

function readPorts(file: string): Ports | null {
  try {
    const { nats, websocket, monitoring } = JSON.parse(readFileSync(file, "utf8"));
    return { tcp: portOf(nats[0]), ws: portOf(websocket[0]), monitor: portOf(monitoring[0]) };
  } catch {
    // Not written yet, or only half.
    return null;
  }
}

function portOf(url: string): number {
  return Number(/:([0-9]+)$/.exec(url)![1]);
}

async function accepts(port: number): Promise<boolean> {
  try {
    const socket = { data: () => undefined };
    const connection = await Bun.connect({ hostname: "127.0.0.1", port, socket });
    connection.end();
    return true;
  } catch {
    return false;
  }
}
