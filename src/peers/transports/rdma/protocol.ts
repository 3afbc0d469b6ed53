/** Names what is spoken in the handshake. */
export const RDMA_PROTOCOL = "hearth-rdma/1";
