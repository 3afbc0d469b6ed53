/** The address of a path at a worker, whose `url` may or may not end with `/v1`. */
export function addressAt(url: string, path: string): string {
  return `${url.replace(/\/+$/, "").replace(/\/v1$/, "")}${path}`;
}
