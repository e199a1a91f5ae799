"""BibTeX of the papers behind the pieces."""

from __future__ import annotations

from headway.base.errors import RecipeError, nearest
from headway.core import Piece
from headway.core.recipe import Recipe

REFERENCES: dict[str, dict[str, str]] = {
    "mcmahan2017fedavg": {
        "type": "inproceedings",
        "title": "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "author": "McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and "
        'Ag{\\"u}era y Arcas, Blaise',
        "booktitle": "International Conference on Artificial Intelligence and Statistics (AISTATS)",
        "year": "2017",
    },
    "li2020fedprox": {
        "type": "inproceedings",
        "title": "Federated Optimization in Heterogeneous Networks",
        "author": "Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and "
        "Smith, Virginia",
        "booktitle": "Proceedings of Machine Learning and Systems (MLSys)",
        "year": "2020",
    },
    "karimireddy2020scaffold": {
        "type": "inproceedings",
        "title": "{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning",
        "author": "Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and "
        "Stich, Sebastian and Suresh, Ananda Theertha",
        "booktitle": "International Conference on Machine Learning (ICML)",
        "year": "2020",
    },
    "hsu2019fedavgm": {
        "type": "article",
        "title": "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
        "author": "Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew",
        "journal": "arXiv preprint arXiv:1909.06335",
        "year": "2019",
    },
    "kim2023fedfn": {
        "type": "article",
        "title": "{FedFN}: Feature Normalization for Alleviating Data Heterogeneity Problem in Federated Learning",
        "author": "Kim, Seongyoon and Lee, Gihun and Oh, Jaehoon and Yun, Se-Young",
        "journal": "arXiv preprint arXiv:2311.13267",
        "year": "2023",
    },
    "oh2022fedbabu": {
        "type": "inproceedings",
        "title": "{FedBABU}: Towards Enhanced Representation for Federated Image Classification",
        "author": "Oh, Jaehoon and Kim, Sangmook and Yun, Se-Young",
        "booktitle": "International Conference on Learning Representations (ICLR)",
        "year": "2022",
    },
    "huang2023etf": {
        "type": "article",
        "title": "Neural Collapse Inspired Federated Learning with Non-iid Data",
        "author": "Huang, Chenxi and Xie, Liang and Yang, Yibo and Wang, Wenxiao and Lin, Binbin and Cai, Deng",
        "journal": "arXiv preprint arXiv:2303.16066",
        "year": "2023",
    },
    "li2023fedetf": {
        "type": "inproceedings",
        "title": "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and "
        "Fixed Classifier",
        "author": "Li, Zexi and Shang, Xinyi and He, Rui and Lin, Tao and Wu, Chao",
        "booktitle": "IEEE/CVF International Conference on Computer Vision (ICCV)",
        "year": "2023",
    },
    "li2021moon": {
        "type": "inproceedings",
        "title": "Model-Contrastive Federated Learning",
        "author": "Li, Qinbin and He, Bingsheng and Song, Dawn",
        "booktitle": "IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)",
        "year": "2021",
    },
    "arivazhagan2019fedper": {
        "type": "article",
        "title": "Federated Learning with Personalization Layers",
        "author": "Arivazhagan, Manoj Ghuhan and Aggarwal, Vinay and Singh, Aaditya Kumar and Choudhary, Sunav",
        "journal": "arXiv preprint arXiv:1912.00818",
        "year": "2019",
    },
    "collins2021fedrep": {
        "type": "inproceedings",
        "title": "Exploiting Shared Representations for Personalized Federated Learning",
        "author": "Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay",
        "booktitle": "International Conference on Machine Learning (ICML)",
        "year": "2021",
    },
    "liu2023fedtc": {
        "type": "article",
        "title": "{FedTC}: A Personalized Federated Learning Method with Two Classifiers",
        "author": "Liu, Yang and Wang, Jiabo and Liu, Qinbo and Gheisari, Mehdi and Xu, Wanyin and Jiang, Zoe L. "
        "and Zhang, Jiajia",
        "journal": "Computers, Materials \\& Continua",
        "year": "2023",
    },
    "luo2021ccvr": {
        "type": "inproceedings",
        "title": "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-{IID} Data",
        "author": "Luo, Mi and Chen, Fei and Hu, Dapeng and Zhang, Yifan and Liang, Jian and Feng, Jiashi",
        "booktitle": "Advances in Neural Information Processing Systems (NeurIPS)",
        "year": "2021",
    },
    "reddi2021fedopt": {
        "type": "inproceedings",
        "title": "Adaptive Federated Optimization",
        "author": (
            "Reddi, Sashank J. and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, "
            "Keith and Kone{\\v{c}}n{\\'y}, Jakub and Kumar, Sanjiv and McMahan, H. Brendan"
        ),
        "booktitle": "International Conference on Learning Representations (ICLR)",
        "year": "2021",
    },
    "wang2020fednova": {
        "type": "inproceedings",
        "title": "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
        "author": "Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent",
        "booktitle": "Advances in Neural Information Processing Systems (NeurIPS)",
        "year": "2020",
    },
    "acar2021feddyn": {
        "type": "inproceedings",
        "title": "Federated Learning Based on Dynamic Regularization",
        "author": (
            "Acar, Durmus Alp Emre and Zhao, Yue and Matas, Ramon and Mattina, Matthew and Whatmough, "
            "Paul and Saligrama, Venkatesh"
        ),
        "booktitle": "International Conference on Learning Representations (ICLR)",
        "year": "2021",
    },
    "jhunjhunwala2023fedexp": {
        "type": "inproceedings",
        "title": "{FedExP}: Speeding Up Federated Averaging via Extrapolation",
        "author": "Jhunjhunwala, Divyansh and Wang, Shiqiang and Joshi, Gauri",
        "booktitle": "International Conference on Learning Representations (ICLR)",
        "year": "2023",
    },
    "fallah2020perfedavg": {
        "type": "inproceedings",
        "title": (
            "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach"
        ),
        "author": "Fallah, Alireza and Mokhtari, Aryan and Ozdaglar, Asuman",
        "booktitle": "Advances in Neural Information Processing Systems (NeurIPS)",
        "year": "2020",
    },
    "yao2018fedmmd": {
        "type": "inproceedings",
        "title": "Two-Stream Federated Learning: Reduce the Communication Costs",
        "author": "Yao, Xin and Huang, Chaofeng and Sun, Lifeng",
        "booktitle": "IEEE Visual Communications and Image Processing (VCIP)",
        "year": "2018",
    },
    "lee2022fedntd": {
        "type": "inproceedings",
        "title": "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning",
        "author": "Lee, Gihun and Jeong, Minchan and Shin, Yongjin and Bae, Sangmin and Yun, Se-Young",
        "booktitle": "Advances in Neural Information Processing Systems (NeurIPS)",
        "year": "2022",
    },
    "tan2022fedproto": {
        "type": "inproceedings",
        "title": "{FedProto}: Federated Prototype Learning across Heterogeneous Clients",
        "author": (
            "Tan, Yue and Long, Guodong and Liu, Lu and Zhou, Tianyi and Lu, Qinghua and Jiang, Jing and Zhang, Chengqi"
        ),
        "booktitle": "AAAI Conference on Artificial Intelligence",
        "year": "2022",
    },
    "li2021fedrs": {
        "type": "inproceedings",
        "title": "{FedRS}: Federated Learning with Restricted Softmax for Label Distribution Non-{IID} Data",
        "author": "Li, Xin-Chun and Zhan, De-Chuan",
        "booktitle": "ACM SIGKDD Conference on Knowledge Discovery and Data Mining (KDD)",
        "year": "2021",
    },
    "dong2022spherefed": {
        "type": "inproceedings",
        "title": "{SphereFed}: Hyperspherical Federated Learning",
        "author": "Dong, Xin and Zhang, Sai Qian and Li, Ang and Kung, H. T.",
        "booktitle": "European Conference on Computer Vision (ECCV)",
        "year": "2022",
    },
    "yang2022dotreg": {
        "type": "inproceedings",
        "title": (
            "Inducing Neural Collapse in Imbalanced Learning: Do We Really Need a Learnable "
            "Classifier at the End of Deep Neural Network?"
        ),
        "author": ("Yang, Yibo and Chen, Shixiang and Li, Xiangtai and Xie, Liang and Lin, Zhouchen and Tao, Dacheng"),
        "booktitle": "Advances in Neural Information Processing Systems (NeurIPS)",
        "year": "2022",
    },
    "dai2023fednh": {
        "type": "inproceedings",
        "title": "Tackling Data Heterogeneity in Federated Learning with Class Prototypes",
        "author": "Dai, Yutong and Chen, Zeyuan and Li, Junnan and Heinecke, Shelby and Sun, Lichao and Xu, Ran",
        "booktitle": "AAAI Conference on Artificial Intelligence",
        "year": "2023",
    },
    "chen2022fedrod": {
        "type": "inproceedings",
        "title": "On Bridging Generic and Personalized Federated Learning for Image Classification",
        "author": "Chen, Hong-You and Chao, Wei-Lun",
        "booktitle": "International Conference on Learning Representations (ICLR)",
        "year": "2022",
    },
    "liang2020lgfedavg": {
        "type": "article",
        "title": "Think Locally, Act Globally: Federated Learning with Local and Global Representations",
        "author": (
            "Liang, Paul Pu and Liu, Terrance and Ziyin, Liu and Allen, Nicholas B. and Auerbach, "
            "Randy P. and Brent, David and Salakhutdinov, Ruslan and Morency, Louis-Philippe"
        ),
        "journal": "arXiv preprint arXiv:2001.01523",
        "year": "2020",
    },
    "yu2020fedaws": {
        "type": "inproceedings",
        "title": "Federated Learning with Only Positive Labels",
        "author": "Yu, Felix X. and Rawat, Ankit Singh and Menon, Aditya Krishna and Kumar, Sanjiv",
        "booktitle": "International Conference on Machine Learning (ICML)",
        "year": "2020",
    },
    "li2021ditto": {
        "type": "inproceedings",
        "title": "Ditto: Fair and Robust Federated Learning Through Personalization",
        "author": "Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia",
        "booktitle": "International Conference on Machine Learning (ICML)",
        "year": "2021",
    },
}


def bibtex(recipe: Recipe) -> str:
    """The entries of a recipe's pieces, each once, in the order of the pieces; pieces without a paper have none."""
    return "\n\n".join(dict.fromkeys(entry(p) for p in recipe.pieces if p.paper))


def entry(piece: Piece) -> str:
    """The entry of a piece's paper; a piece of a user's own may hold a whole entry, which is given back."""
    key = piece.paper
    if key not in REFERENCES:
        if key.strip().startswith("@"):
            return key.strip()
        fix = nearest(key, REFERENCES, "write an entry that begins with @, or leave paper out")
        raise RecipeError(f"{piece.name}: paper={key[:80]!r} is neither a known key nor a BibTeX entry; {fix}")
    fields = dict(REFERENCES[key])
    kind = fields.pop("type")
    body = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"@{kind}{{{key},\n{body}\n}}"
