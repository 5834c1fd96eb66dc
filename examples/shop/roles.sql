-- Two roles, as a real application has them: one takes orders, one ships them. Neither is a
-- superuser or owns the tables. Roles belong to the server; run this once.

create role shop_app login;
create role shop_worker login;
