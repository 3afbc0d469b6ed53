/** Where a socket binds or connects: `tcp://host:port`, or `ipc://path` for a Unix socket. */
export type ZmtpEndpoint =
  | { readonly kind: "tcp"; readonly host: string; readonly port: number }
  | { readonly kind: "ipc"; readonly path: string };

/** The kernel's limit of a Unix socket's path, less the zero behind it. */
const IPC_PATH_BYTES_MAX = 107;
const TCP =
  /^tcp:\/\/(?:\[(?<v6>[0-9a-fA-F:.]+)\]|(?<host>[^[\]:/\s]+|::)):(?<port>[0-9]{1,5}|\*)$/;

/**
 * Reads an endpoint as engines and ZeroMQ write them. `*` as a host is `0.0.0.0`, as a port 0: any
 * that is free; `[...]` holds IPv6. Null: it is none of these.
 */
export function parseEndpoint(text: string): ZmtpEndpoint | null {
  if (text.startsWith("ipc://")) {
    const path = text.slice("ipc://".length);
    const isPath = path !== "" && !path.includes("\0") && path[0] !== "@" && path !== "*";
    return isPath && Buffer.byteLength(path) <= IPC_PATH_BYTES_MAX ? { kind: "ipc", path } : null;
  }
  const groups = TCP.exec(text)?.groups;
  if (groups === undefined) return null;
  const port = groups.port === "*" ? 0 : Number(groups.port);
  if (port > 65_535) return null;
  const host = groups.v6 ?? groups.host!;
  return { kind: "tcp", host: host === "*" ? "0.0.0.0" : host, port };
}

export function formatEndpoint(endpoint: ZmtpEndpoint): string {
  if (endpoint.kind === "ipc") return `ipc://${endpoint.path}`;
  const { host, port } = endpoint;
  return host.includes(":") ? `tcp://[${host}]:${port}` : `tcp://${host}:${port}`;
}

/**
 * Whether an engine whose publisher has this endpoint binds there; otherwise it connects, and its
 * reader must bind. vLLM looks for `*`, `::`, `ipc://` and `inproc://`, SGLang for `0.0.0.0` too.
 */
export function engineBinds(endpoint: string, engine: "vllm" | "sglang"): boolean {
  if (endpoint.includes("*") || endpoint.includes("::")) return true;
  if (endpoint.startsWith("ipc://") || endpoint.startsWith("inproc://")) return true;
  return engine === "sglang" && endpoint.includes("0.0.0.0");
}
