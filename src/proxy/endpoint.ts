export type Endpoint =
  | { readonly kind: "chat" | "completions"; readonly path: string }
  | { readonly kind: "models"; readonly id: string | null };

const CHAT = "/v1/chat/completions";
const COMPLETIONS = "/v1/completions";
const MODELS = "/v1/models";

function pathOf(url: string): string {
  const start = url.indexOf("/", url.indexOf("://") + 3);
  if (start < 0) return "/";
  const query = url.indexOf("?", start);
  return query < 0 ? url.slice(start) : url.slice(start, query);
}

/** Whether the proxy answers requests for this address, whatever their method. */
export function isProxied(url: string): boolean {
  const path = pathOf(url);
  return path === CHAT || path === COMPLETIONS || path === MODELS || path.startsWith(`${MODELS}/`);
}

/** What is asked for; in words what is wrong with it. */
export function endpointOf(method: string, url: string): Endpoint | "unknown" | "method" {
  const path = pathOf(url);
  if (path === CHAT || path === COMPLETIONS) {
    if (method !== "POST") return "method";
    return { kind: path === CHAT ? "chat" : "completions", path };
  }
  if (path !== MODELS && !path.startsWith(`${MODELS}/`)) return "unknown";
  if (method !== "GET") return "method";
  const id = path === MODELS ? null : path.slice(MODELS.length + 1);
  try {
    return { kind: "models", id: id === null ? null : decodeURIComponent(id) };
  } catch {
    return "unknown";
  }
}
