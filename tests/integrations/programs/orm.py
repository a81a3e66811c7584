"""SQLAlchemy: data frames, sessions, reflection and a pool, on the database of a URL."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = sa.create_engine(sys.argv[1])


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customer"
    number = sa.Sequence("customer_number")
    id: Mapped[int] = mapped_column(number, server_default=number.next_value(), primary_key=True)
    name: Mapped[str]
    balance: Mapped[float] = mapped_column(default=0)


frame = pd.DataFrame({"id": [1, 2, 3], "name": ["a", "b", None], "day": pd.date_range("2026-01-01", periods=3)})
frame.to_sql("frames", engine, if_exists="replace", index=False)
frame.to_sql("frames", engine, if_exists="append", index=False, method="multi")
print(pd.read_sql("SELECT * FROM frames ORDER BY ALL", engine).to_csv())
print(pd.read_sql_table("frames", engine).shape)
with engine.begin() as connection:
    connection.execute(sa.text("register(:name, :frame)"), {"name": "extra", "frame": frame})
    connection.execute(sa.text("CREATE TABLE extra_table AS SELECT * FROM extra"))

Base.metadata.create_all(engine)
with Session(engine) as session:
    session.add_all([Customer(name=name) for name in "abcde"])
    session.commit()
    session.scalars(sa.select(Customer).where(Customer.name == "b")).one().balance = 5
    session.commit()
    session.delete(session.get(Customer, 1))
    session.commit()
    session.add(Customer(name="rolled back"))
    session.flush()
    session.rollback()
    session.execute(sa.update(Customer).values(balance=Customer.balance + 1))
    session.commit()
    print(session.execute(sa.select(Customer.name, Customer.balance).order_by(Customer.id)).all())

inspector = sa.inspect(engine)
print(sorted({"customer", "extra_table", "frames"} & set(inspector.get_table_names())))
print([column["name"] for column in inspector.get_columns("customer")])
table = sa.Table("customer", sa.MetaData(), autoload_with=engine)
with engine.begin() as connection:
    added = connection.execute(table.insert().returning(table.c.name), [{"name": "y", "balance": 1.0}])
    print(added.all())


def write(writer: int) -> None:
    for number in range(5):
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO frames VALUES (:id, 'p', NULL)"), {"id": writer * 100 + number})


with ThreadPoolExecutor(4) as pool:
    list(pool.map(write, range(4)))
print(pd.read_sql("SELECT count(*) AS rows, sum(id) AS ids FROM frames", engine).to_csv())
try:
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO customer (id, name) VALUES (2, 'twice')"))
except sa.exc.DBAPIError as error:
    print(type(error.orig).__name__)
engine.dispose()
