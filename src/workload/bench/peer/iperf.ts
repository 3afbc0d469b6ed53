import { HearthError } from "../../../core/index.ts";

export interface IperfLoad {
  readonly bytes: number;
  readonly connections: number;
  /** Of one call of the kernel; iperf3 takes at most a MiB. */
  readonly lengthBytes: number;
  readonly signal: AbortSignal;
}

const LENGTH_BYTES_MAX = 2 ** 20;

/** As far as its report is looked at. */
interface Report {
  readonly end?: { readonly sum_received?: { readonly bits_per_second: number } };
  readonly error?: string;
}

/** iperf3 against itself over the loopback. */
export class Iperf {
  readonly #program: string;

  constructor(program: string) {
    this.#program = program;
  }

  /** Null where the host has none. */
  static find(): string | null {
    return Bun.which("iperf3");
  }

  /** 10^9 bytes a second that arrived. Throws UNSUPPORTED where it does not work here. */
  async gbps(load: IperfLoad): Promise<number> {
    const { signal } = load;
    const port = freePort();
    const words = ["-s", "-1", "-B", "127.0.0.1", "-p", `${port}`, "--forceflush"];
    const server = Bun.spawn([this.#program, ...words], {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "ignore",
      signal,
    });
    try {
      // It says that it listens.
      const reader = server.stdout.getReader();
      await reader.read();
      const report = await this.#run(load, port);
      const bits = report.end?.sum_received?.bits_per_second;
      if (bits !== undefined) return bits / 8e9;
      throw new HearthError("UNSUPPORTED", `iperf3: ${report.error ?? "no figures"}`);
    } finally {
      server.kill("SIGKILL");
      await server.exited;
    }
  }

  async #run(load: IperfLoad, port: number): Promise<Report> {
    const { bytes, connections, lengthBytes, signal } = load;
    const where = ["-c", "127.0.0.1", "-p", `${port}`, "-J"];
    const length = Math.min(lengthBytes, LENGTH_BYTES_MAX);
    const what = ["-n", `${bytes}`, "-P", `${connections}`, "-l", `${length}`];
    const client = Bun.spawn([this.#program, ...where, ...what], {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "ignore",
      signal,
    });
    return JSON.parse(await client.stdout.text()) as Report;
  }
}

function freePort(): number {
  const socket = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { data() {} } });
  const { port } = socket;
  socket.stop(true);
  return port;
}
