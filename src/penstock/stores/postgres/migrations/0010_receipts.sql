-- Transactions in one round trip leave a receipt.

CREATE TABLE penstock.receipt (
    client bigint PRIMARY KEY,
    number bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
)
WITH (fillfactor = 50);

-- no switch
